"""What every format is packaged from: the counted rows, and what the other steps recorded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidden_states.checkpoint import TextConfig, read_text_config
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.packaging.repair import quarantine_foreign
from hidden_states.packaging.survey import Survey, survey_rows
from hidden_states.store.checksums import StateFileError, read_header
from hidden_states.store.state_file import StateHeader


@dataclass(frozen=True)
class Inputs:
    """``summary`` is ``tokens/summary.json``, ``server`` is ``server/ready.json``, ``header`` that of one state file:
    all have its fingerprint, layers and final state. ``token_checksums``: those of the token files, by chunk."""

    settings: dict[str, Any]
    results: Results
    model_folder: Path
    model: TextConfig
    survey: Survey
    summary: dict[str, Any]
    server: dict[str, Any]
    header: StateHeader
    token_checksums: dict[str, str]


def read_inputs(settings: dict[str, Any], results: Results, model_folder: Path) -> Inputs:
    """Read and check everything; move away what the last ticket calls foreign in the store.

    Raises UserError when a chunk is not extracted or chunks, tokens and server do not fit together.
    """
    survey = survey_rows(results, settings["extraction"]["chunks"])
    summary, server = _read(results.summary), _read(results.ready)
    if server.get("fingerprint") != survey.fingerprint:
        raise UserError(
            f"{results.ready} is about fingerprint {server.get('fingerprint')}, but the chunks were made with "
            f"{survey.fingerprint}; run: snakemake --cores 8 all"
        )
    quarantine_foreign(results, survey)
    return Inputs(
        settings=settings,
        results=results,
        model_folder=model_folder,
        model=read_text_config(model_folder / "config.json"),
        survey=survey,
        summary=summary,
        server=server,
        header=_first_header(results, survey),
        token_checksums=_token_checksums(results, summary, survey),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run: snakemake --cores 8 all") from error


def _token_checksums(results: Results, summary: dict[str, Any], survey: Survey) -> dict[str, str]:
    try:
        return {chunk.chunk: summary["files"][f"{chunk.chunk}.parquet"]["checksum"] for chunk in survey.chunks}
    except KeyError as error:
        raise UserError(f"{results.summary} does not list token file {error}; run: snakemake --cores 8 all") from None


def _first_header(results: Results, survey: Survey) -> StateHeader:
    """The header of one state file; its layers and final state are those of all, as the fingerprint is."""
    path = results.root / survey.first_file
    try:
        return read_header(path, None).header
    except StateFileError as error:
        raise UserError(f"{path}: {error}. Run: snakemake verify, then: snakemake --cores 8 all") from error
