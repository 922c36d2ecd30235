"""The gate for packaging: one chunk's manifest against its token file and the headers of its state files.

Contents were checked when the states were published; ``verify`` reads them in full.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.store.checksums import StateFileError, file_checksum, read_header
from hidden_states.store.manifest import reason_code
from hidden_states.store.tokens import check_token_file
from hidden_states.verification.rows import (
    Kind,
    ManifestError,
    Row,
    check_rows,
    compare_with_state,
    manifest_rows,
    state_path,
    token_rows,
)


@dataclass
class ChunkRecord:
    """What ``qa/{chunk}.json`` says: counts of one chunk's samples. Deterministic: equal manifests, equal bytes.

    ``manifest``: XXH3-128 of the manifest's file, as its own columns do not tell of a bit that flips in all of them.
    """

    chunk: str
    manifest: str
    samples: int = 0
    ok: int = 0
    tokens: int = 0
    bytes: int = 0
    fingerprint: str | None = None
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.samples += 1
        self.fingerprint = row.fingerprint
        if row.ok:
            self.ok, self.tokens, self.bytes = self.ok + 1, self.tokens + row.n_tokens, self.bytes + row.bytes
        else:
            self.failed[reason_code(row.reason)] += 1

    def content(self) -> dict[str, Any]:
        """``failed`` maps the reason's code to the number of samples; tokens and bytes are of the good samples."""
        return {**vars(self), "failed": dict(sorted(self.failed.items()))}


def verify_chunk(results: Results, chunk: str) -> ChunkRecord:
    """Check one chunk and write ``qa/{chunk}.json``.

    Raises UserError naming chunk, sample and file when something does not fit; then no record is written.
    """
    check_token_file(results, chunk)
    kind = Kind()
    try:
        record = new_record(results, chunk)
        for row in _counted(check_rows(manifest_rows(results, chunk), token_rows(results, chunk)), record):
            if row.ok:
                _check_state(results, chunk, row, kind)
    except ManifestError as error:
        raise UserError(
            f"chunk {chunk}: {results.manifest(chunk)} does not fit {results.tokens(chunk)}: {error}. "
            f"Run: snakemake --cores 8 all -R {results.manifest(chunk)}"
        ) from None
    write_json(results.chunk_qa(chunk), record.content())
    return record


def new_record(results: Results, chunk: str) -> ChunkRecord:
    """The record of a chunk before its rows are counted. Raises UserError when there is no manifest."""
    path = results.manifest(chunk)
    try:
        return ChunkRecord(chunk, file_checksum(path))
    except FileNotFoundError:
        raise UserError(f"manifest {path} does not exist; run `snakemake --cores 8 all`.") from None
    except OSError as error:
        raise UserError(f"manifest {path} cannot be read ({error.strerror}).") from None


def _counted(rows: Iterable[Row], record: ChunkRecord) -> Iterable[Row]:
    for row in rows:
        record.add(row)
        yield row


def _check_state(results: Results, chunk: str, row: Row, kind: Kind) -> None:
    path = state_path(results, row)
    try:
        compare_with_state(row, read_header(path, None), kind)
    except StateFileError as error:
        raise UserError(
            f"chunk {chunk}, sample {row.sample_id}: state file {path}: {error}. "
            "Run: snakemake verify, which finds all such files, then: snakemake --cores 8 all"
        ) from None
