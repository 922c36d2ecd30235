"""The numbers of a run, from token files, manifests, journals, QA records and ``server/ready.json``.

Only small columns are read, one chunk in memory at a time, and a few tokens of a few states.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hidden_states.errors import UserError
from hidden_states.layout import Results, chunk_name
from hidden_states.report.conversations import ShownSample
from hidden_states.report.norms import StateNorms, chosen_rows
from hidden_states.report.rejects import rejected_examples
from hidden_states.store.manifest import read_manifest, reason_code
from hidden_states.store.tokens import read_tokens

SHARE_BARS = 20
"""Of the shares of loss tokens, from 0 to 1."""


@dataclass
class ChunkFigures:
    """One chunk. ``computed_tokens``, ``seconds`` and the rates are of the last run that computed anything for it,
    None where everything came from the store."""

    chunk: str
    samples: int
    failed: int
    tokens: int
    loss_tokens: int
    bytes: int
    verified: bool
    computed_tokens: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    bytes_per_second: float | None = None
    server_restarts: int | None = None


@dataclass
class RunFigures:
    """All of a run. ``length_counts[n]`` is the number of good samples with n tokens, ``share_counts[i]`` of those
    whose share of tokens with loss is in the i-th of SHARE_BARS equal parts. ``shown`` are samples to look at, None
    where nobody could decode them."""

    summary: dict[str, Any]
    server: dict[str, Any]
    provenance: dict[str, Any]
    chunks: list[ChunkFigures] = field(default_factory=list)
    failed_reasons: Counter[str] = field(default_factory=Counter)
    length_counts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    share_counts: np.ndarray = field(default_factory=lambda: np.zeros(SHARE_BARS, np.int64))
    norms: StateNorms = field(default_factory=StateNorms)
    rejected_examples: dict[str, list[str]] = field(default_factory=dict)
    shown: list[ShownSample] | None = None

    def total(self, name: str) -> float:
        """Sum of a column over all chunks, chunks without it left out."""
        return sum(value for chunk in self.chunks if (value := getattr(chunk, name)) is not None)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens computed by the time it took, over all chunks."""
        seconds = self.total("seconds")
        return self.total("computed_tokens") / seconds if seconds else None


def gather(results: Results, num_chunks: int, format_name: str = "speculators") -> RunFigures:
    """Read everything; the provenance is that of this format. Raises UserError when a step's record is missing."""
    run = RunFigures(
        summary=_read(results.summary),
        server=_read(results.ready),
        provenance=_read(results.dataset(format_name) / "provenance.json"),
    )
    run.rejected_examples = rejected_examples(results, run.summary["reasons"])
    for index in range(num_chunks):
        run.chunks.append(_chunk(results, index, num_chunks, run))
    return run


def _chunk(results: Results, index: int, num_chunks: int, run: RunFigures) -> ChunkFigures:
    chunk = chunk_name(index)
    manifest = read_manifest(results.manifest(chunk), ["status", "reason", "n_tokens", "bytes", "file"])
    good = np.array([status == "ok" for status in manifest["status"].to_pylist()], bool)
    lengths = manifest["n_tokens"].to_numpy()[good]
    loss_tokens = read_tokens(results.tokens(chunk), ["n_loss_tokens"])["n_loss_tokens"].to_numpy()
    if len(loss_tokens) != len(good):
        raise UserError(f"{results.manifest(chunk)} does not belong to its tokens; run: snakemake --cores 8 all")
    reasons = np.array(manifest["reason"].to_pylist(), object)[~good]
    run.failed_reasons.update(reason_code(reason) for reason in reasons)
    before = int(run.length_counts.sum())
    run.length_counts = _add(run.length_counts, np.bincount(lengths))
    run.share_counts += np.histogram(loss_tokens[good] / np.maximum(lengths, 1), SHARE_BARS, (0, 1))[0]
    rows = np.flatnonzero(good)
    for number in chosen_rows(len(rows), index, num_chunks):
        run.norms.add(before + number, results.root / manifest["file"][int(rows[number])].as_py())
    figures = ChunkFigures(
        chunk=chunk,
        samples=int(good.sum()),
        failed=int((~good).sum()),
        tokens=int(lengths.sum()),
        loss_tokens=int(loss_tokens[good].sum()),
        bytes=int(manifest["bytes"].to_numpy()[good].sum()),
        verified=results.chunk_qa(chunk).exists(),
    )
    run_line = _last_run(results.journal(chunk))
    if run_line:
        figures.computed_tokens, figures.seconds = run_line["tokens"], run_line["seconds"]
        figures.tokens_per_second = run_line["tokens_per_second"]
        figures.bytes_per_second = run_line["bytes_per_second"]
        figures.server_restarts = run_line["server_restarts"]
    return figures


def _last_run(journal: Path) -> dict[str, Any] | None:
    """The last ``{"run": …}`` line of a journal that computed something."""
    found = None
    try:
        with open(journal, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith('{"run"'):
                    run = json.loads(line)["run"]
                    found = run if run.get("tokens") else found
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{journal} holds a line that is not JSON: {error}") from error
    return found


def _add(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run: snakemake --cores 8 all") from error
