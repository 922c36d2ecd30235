"""The dataset that speculators 0.5 and later reads: table, links to the states, and papers about them."""

import json
import logging
from pathlib import Path
from typing import Any

from hidden_states.checkpoint import read_text_config
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.packaging.card import dataset_card
from hidden_states.packaging.frequencies import write_token_frequencies
from hidden_states.packaging.links import link_states
from hidden_states.packaging.provenance import provenance, to_bytes
from hidden_states.packaging.record import Record
from hidden_states.packaging.repair import damaged_files, quarantine_foreign
from hidden_states.packaging.shards import write_shards
from hidden_states.packaging.survey import Survey, state_rows, survey_rows
from hidden_states.store.checksums import StateFileError, read_header
from hidden_states.store.state_file import StateHeader

log = logging.getLogger(__name__)

FORMAT = "speculators"


def package(settings: dict[str, Any], results: Results, model_folder: Path) -> None:
    """Bring ``dataset/speculators`` up to date with tokens, manifests and store; what is right is not touched.

    ``provenance.json`` comes last, so a folder that has it is complete. Raises UserError when a chunk is not
    extracted, chunks do not fit together or a state file is not the published one.
    """
    survey = survey_rows(results, settings["extraction"]["chunks"])
    summary, server = _read(results.summary), _read(results.ready)
    if server.get("fingerprint") != survey.fingerprint:
        raise UserError(
            f"{results.ready} is about fingerprint {server.get('fingerprint')}, but the chunks were made with "
            f"{survey.fingerprint}; run: snakemake --cores 8 all"
        )
    quarantine_foreign(results, survey)
    record = Record(results.dataset(FORMAT))
    record.folder.mkdir(parents=True, exist_ok=True)
    copy = settings["packaging"]["link"] == "copy"
    suspect = damaged_files(results, record.folder)
    links = link_states(results, survey, state_rows(results, survey), record, copy, suspect)

    token_checksums = _token_checksums(results, summary, survey)
    write_shards(results, survey, token_checksums, record)
    write_token_frequencies(results, survey, token_checksums, summary["embedding_rows"], record)
    model = read_text_config(model_folder / "config.json")
    header = _first_header(results, survey)
    content = provenance(record.folder, settings, model_folder, model, header, survey, summary, server)
    record.write_bytes("README.md", dataset_card(content).encode())
    record.finish(to_bytes(content))
    log.info(
        "%s: %d state files linked or copied, %d kept, %d removed; written: %s",
        record.folder,
        links.made,
        links.kept,
        links.removed,
        ", ".join(record.changed) or "nothing",
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
