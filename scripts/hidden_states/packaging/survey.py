"""The rows to package: counted and checked from the small columns of manifests and token files.

A row of the packaged dataset is a sample whose manifest status is ``ok``; rows are numbered over all chunks in order.
Nothing here reads token ids or states, and the rows of one chunk are in memory at a time.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results, chunk_name
from hidden_states.store.manifest import read_manifest, reason_code
from hidden_states.store.tokens import read_tokens

BATCH_ROWS = 8192
MANIFEST_COLUMNS = [
    *("sample_id", "key", "fingerprint", "status", "reason", "file", "n_tokens", "slots", "hidden_size", "dtype"),
    *("checksum", "bytes", "published"),
]


@dataclass(frozen=True)
class StateRow:
    """One packaged sample: ``row`` is its number in the dataset, ``file`` its state file relative to the results,
    ``bytes`` that file's size, ``published`` its ``inode:mtime_ns``."""

    row: int
    key: str
    file: str
    bytes: int
    checksum: str
    published: str
    num_tokens: int


@dataclass
class ChunkRows:
    """One chunk's share: its first row's number, its rows, its failed samples, and the digest of the rows' identity
    and order."""

    chunk: str
    first_row: int
    rows: int = 0
    failed: int = 0
    digest: str = ""


@dataclass
class Survey:
    """Everything counted over all chunks. ``content`` is the digest of every row's key and states' checksum."""

    chunks: list[ChunkRows] = field(default_factory=list)
    fingerprint: str = ""
    slots: int = 0
    hidden_size: int = 0
    dtype: str = ""
    rows: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    loss_tokens: int = 0
    longest: int = 0
    bytes: int = 0
    first_file: str = ""
    content: str = ""


def manifest_batches(results: Results, chunk: str, columns: list[str]) -> Iterator[dict[str, list[Any]]]:
    """Batches of a chunk's manifest as lists by column name. Raises UserError when it is missing or damaged."""
    for batch in read_manifest(results.manifest(chunk), columns).to_batches(BATCH_ROWS):
        yield batch.to_pydict()


def state_rows(results: Results, survey: Survey) -> Iterator[StateRow]:
    """Every packaged sample in the order of its row number."""
    row = 0
    for chunk in survey.chunks:
        for batch in manifest_batches(results, chunk.chunk, MANIFEST_COLUMNS):
            for index, status in enumerate(batch["status"]):
                if status != "ok":
                    continue
                yield StateRow(
                    row=row,
                    key=batch["key"][index],
                    file=batch["file"][index],
                    bytes=batch["bytes"][index],
                    checksum=batch["checksum"][index],
                    published=batch["published"][index],
                    num_tokens=batch["n_tokens"][index],
                )
                row += 1


def survey_rows(results: Results, num_chunks: int) -> Survey:
    """Count and check the rows of all chunks.

    Raises UserError when a manifest is missing or does not belong to its token file, when manifests were made by
    more than one configuration (fingerprint), or when there is no row at all.
    """
    survey = Survey()
    content = hashlib.blake2b(digest_size=16)
    shapes: dict[tuple[str, int, int, str], str] = {}
    for index in range(num_chunks):
        chunk = ChunkRows(chunk_name(index), first_row=survey.rows)
        identity = hashlib.blake2b(digest_size=16)
        tokens = _token_rows(results, chunk.chunk)
        for batch in manifest_batches(results, chunk.chunk, MANIFEST_COLUMNS):
            for position, status in enumerate(batch["status"]):
                sample_id, key, num_tokens = (batch[name][position] for name in ("sample_id", "key", "n_tokens"))
                token_row = next(tokens, None)
                if token_row is None or token_row[:2] != (sample_id, key):
                    raise UserError(
                        f"{results.manifest(chunk.chunk)} does not belong to {results.tokens(chunk.chunk)}: sample "
                        f"{sample_id} is not where the tokens have it; run: snakemake --cores 8 all"
                    )
                if status != "ok":
                    chunk.failed += 1
                    survey.reasons[reason_code(batch["reason"][position])] += 1
                    continue
                shape = tuple(batch[name][position] for name in ("fingerprint", "slots", "hidden_size", "dtype"))
                shapes.setdefault(shape, chunk.chunk)
                survey.first_file = survey.first_file or batch["file"][position]
                survey.tokens += num_tokens
                survey.loss_tokens += token_row[2]
                survey.longest = max(survey.longest, num_tokens)
                survey.bytes += batch["bytes"][position]
                identity.update(f"{sample_id}|{key}|{num_tokens}\n".encode())
                content.update(f"{key}|{batch['checksum'][position]}\n".encode())
                chunk.rows += 1
        if next(tokens, None) is not None:
            raise UserError(
                f"{results.manifest(chunk.chunk)} has fewer samples than {results.tokens(chunk.chunk)}; "
                f"run: snakemake --cores 8 all -R {results.manifest(chunk.chunk)}"
            )
        chunk.digest = identity.hexdigest()
        survey.rows += chunk.rows
        survey.failed += chunk.failed
        survey.chunks.append(chunk)
    _require_one_kind(shapes)
    survey.fingerprint, survey.slots, survey.hidden_size, survey.dtype = next(iter(shapes))
    survey.content = content.hexdigest()
    return survey


def _token_rows(results: Results, chunk: str) -> Iterator[tuple[int, str, int]]:
    """``(sample_id, key, n_loss_tokens)`` of every row of a token file."""
    names = ["sample_id", "key", "n_loss_tokens"]
    for batch in read_tokens(results.tokens(chunk), names).to_batches(BATCH_ROWS):
        columns = batch.to_pydict()
        yield from zip(*(columns[name] for name in names), strict=True)


def _require_one_kind(shapes: dict[tuple[str, int, int, str], str]) -> None:
    if not shapes:
        raise UserError(
            "There is no sample to package: every one failed, or none was accepted. The reasons are in "
            "chunks/*/manifest.parquet and tokens/rejected.parquet."
        )
    if len(shapes) > 1:
        kinds = "; ".join(
            f"chunk {chunk}: {fingerprint} ({slots} × {hidden_size} {dtype})"
            for (fingerprint, slots, hidden_size, dtype), chunk in shapes.items()
        )
        raise UserError(
            f"The chunks were made by {len(shapes)} different configurations, which must not be mixed in one dataset. "
            f"First chunk of each fingerprint: {kinds}. Run: snakemake --cores 8 all"
        )
