"""The rows of a manifest: against the token file they are about, and against the state file each names."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from hidden_states.layout import Results
from hidden_states.store.checksums import CheckedFile, StateFileError
from hidden_states.store.manifest import read_manifest
from hidden_states.store.store import HASH_PATTERN, Store

BATCH_ROWS = 4096


class ManifestError(Exception):
    """A manifest does not fit its token file, or contradicts itself; the message says at which sample."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a manifest, but for ``seconds``; the columns are documented there."""

    sample_id: int
    key: str
    fingerprint: str
    status: str
    reason: str | None
    file: str | None
    n_tokens: int
    slots: int
    hidden_size: int
    dtype: str
    checksum: str | None
    bytes: int
    published: str | None

    @property
    def ok(self) -> bool:
        return self.status == "ok"


COLUMNS = list(Row.__dataclass_fields__)


@dataclass
class Kind:
    """What all states of a run have in common, learned from the first file: layers and side of the norm."""

    layers: tuple[int, ...] | None = None
    final: str | None = None


def manifest_rows(results: Results, chunk: str) -> Iterator[Row]:
    """The rows of a chunk's manifest. Raises UserError when it is missing or damaged."""
    for batch in read_manifest(results.manifest(chunk), COLUMNS).select(COLUMNS).to_batches(BATCH_ROWS):
        yield from (Row(*values) for values in zip(*(column.to_pylist() for column in batch.columns), strict=True))


def token_rows(results: Results, chunk: str) -> Iterator[tuple[int, str, int]]:
    """``(sample_id, key, n_tokens)`` of a token file that is known to be intact."""
    with pyarrow.parquet.ParquetFile(results.tokens(chunk)) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["sample_id", "key", "n_tokens"]):
            columns: dict[str, list[Any]] = batch.to_pydict()
            yield from zip(columns["sample_id"], columns["key"], columns["n_tokens"], strict=True)


def check_rows(rows: Iterator[Row], tokens: Iterator[tuple[int, str, int]] | None) -> Iterator[Row]:
    """Pass ``rows`` on after checking each against its row of the token file (None: that is damaged) and itself.

    Raises ManifestError at the first that does not fit.
    """
    fingerprint = None
    for row in rows:
        fingerprint = fingerprint or row.fingerprint
        if tokens is not None and (expected := next(tokens, None)) != (row.sample_id, row.key, row.n_tokens):
            found = (row.sample_id, row.key, row.n_tokens)
            raise ManifestError(f"the manifest has sample {_words(found)} where the token file has {_words(expected)}")
        if row.fingerprint != fingerprint:
            raise ManifestError(f"sample {row.sample_id} has fingerprint {row.fingerprint}, others have {fingerprint}")
        if problem := _contradiction(row):
            raise ManifestError(f"sample {row.sample_id}: {problem}")
        yield row
    if tokens is not None and (missing := next(tokens, None)) is not None:
        raise ManifestError(f"the manifest ends before sample {_words(missing)}")


def compare_with_state(row: Row, state: CheckedFile, kind: Kind) -> None:
    """Raise StateFileError unless ``state`` is what ``row`` recorded, and of the same ``kind`` as the others."""
    header = state.header
    for reason, has, wants, what in (
        ("foreign", (header.key, header.fingerprint), (row.key, row.fingerprint), "key and fingerprint"),
        (
            "wrong_shape",
            (header.num_tokens, header.num_slots, header.hidden_size, header.dtype, header.file_bytes),
            (row.n_tokens, row.slots, row.hidden_size, row.dtype, row.bytes),
            "tokens, slots, width, dtype and bytes",
        ),
        ("checksum_mismatch", header.checksum, row.checksum, "checksum"),
        ("replaced", state.published, row.published, "inode and time"),
    ):
        if has != wants:
            raise StateFileError(reason, f"{what}: the file has {has}, the manifest {wants}")
    if kind.layers is None:
        kind.layers, kind.final = header.layers, header.final
    if (header.layers, header.final) != (kind.layers, kind.final):
        raise StateFileError(
            "wrong_layers", f"layers {header.layers} {header.final}; others have {kind.layers} {kind.final}"
        )


def state_path(results: Results, row: Row) -> Path:
    return results.root / str(row.file)


def _contradiction(row: Row) -> str | None:
    if not (HASH_PATTERN.fullmatch(row.key) and HASH_PATTERN.fullmatch(row.fingerprint)):
        return f"{row.key!r} and {row.fingerprint!r} are no key and fingerprint"
    if row.ok:
        place = str(Store(Results(Path()), row.fingerprint).path(row.key))
        if row.file != place:
            return f"its file is {row.file}, not {place}"
        if row.checksum is None or row.published is None or row.reason is not None:
            return "it is ok, but has no checksum, or a reason for failing"
    elif row.status == "failed":
        if not row.reason or (row.file, row.checksum, row.published, row.bytes) != (None, None, None, 0):
            return "it failed, but has no reason, or a file"
    else:
        return f"its status is {row.status!r}"
    return None


def _words(row: tuple[int, str, int] | None) -> str:
    return "none" if row is None else f"{row[0]} ({row[1]}, {row[2]} tokens)"
