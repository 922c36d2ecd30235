"""Reading the token files that tokenize wrote: ``tokens/{chunk}.parquet``."""

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet

from hidden_states.errors import UserError
from hidden_states.files import atomic_path
from hidden_states.layout import Results
from hidden_states.store.checksums import file_checksum

log = logging.getLogger(__name__)

ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class TokenSample:
    """One sample to compute: ``token_ids`` is int64 [num_tokens]."""

    sample_id: int
    key: str
    token_ids: numpy.ndarray

    @property
    def num_tokens(self) -> int:
        return self.token_ids.size


def read_tokens(path: Path, columns: list[str] | None = None) -> pyarrow.Table:
    """Columns of a token file. Raises UserError when the file is missing or damaged."""
    try:
        return pyarrow.parquet.read_table(path, columns=columns, partitioning=None)
    except FileNotFoundError:
        raise UserError(f"token file {path} does not exist; run `snakemake --cores 8 all`.") from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"token file {path} is damaged ({error}); delete it and run `snakemake --cores 8 all` again."
        ) from None


def iterate_samples(path: Path) -> Iterator[TokenSample]:
    """The samples of a token file in order, a few rows in memory at a time. Raises UserError for a damaged file."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_A_TIME, columns=["sample_id", "key", "input_ids"]):
                ids = batch.column("input_ids")
                for row, (sample_id, key) in enumerate(
                    zip(batch.column("sample_id").to_pylist(), batch.column("key").to_pylist(), strict=True)
                ):
                    values = ids[row].values.to_numpy(zero_copy_only=False)
                    yield TokenSample(sample_id, key, values.astype(numpy.int64))
    except FileNotFoundError:
        raise UserError(f"token file {path} does not exist; run `snakemake --cores 8 all`.") from None
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"token file {path} is damaged ({error}); delete it and run `snakemake --cores 8 all` again."
        ) from None


def keep_copy(results: Results, chunk: str) -> None:
    """Write the second copy of a token file, small beside the states, from which ``make_whole`` takes it."""
    with atomic_path(results.token_copy(chunk)) as temporary:
        shutil.copyfile(results.tokens(chunk), temporary)


def make_whole(results: Results, chunk: str) -> None:
    """Of a token file and its copy, put the one that is what the summary recorded in the place of the other, where
    that one is damaged or missing. When neither is, leave everything as it is, for ``check_token_file`` to refuse."""
    path, copy = results.tokens(chunk), results.token_copy(chunk)
    try:
        recorded = json.loads(results.summary.read_text(encoding="utf-8"))["files"][path.name]["checksum"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    right = {file: _has_checksum(file, recorded) for file in (path, copy)}
    if right[path] and not right[copy]:
        log.warning("the copy %s was damaged; it is made again", copy)
        keep_copy(results, chunk)
    elif right[copy] and not right[path]:
        log.warning("token file %s was damaged; its copy takes its place", path)
        with atomic_path(path) as temporary:
            shutil.copyfile(copy, temporary)


def _has_checksum(path: Path, checksum: str) -> bool:
    try:
        return file_checksum(path) == checksum
    except OSError:
        return False


def check_token_file(results: Results, chunk: str) -> None:
    """Compare a chunk's token file with what ``tokens/summary.json`` recorded of it; UserError when it changed."""
    path = results.tokens(chunk)
    again = f"delete {path} and run `snakemake --cores 8 all` again"
    try:
        recorded = json.loads(results.summary.read_text(encoding="utf-8"))["files"][path.name]["checksum"]
    except FileNotFoundError:
        raise UserError(f"{results.summary} does not exist; run `snakemake --cores 8 all`.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{results.summary} is damaged or does not list {path.name}; {again}.") from None
    try:
        found = file_checksum(path)
    except OSError as error:
        raise UserError(f"token file {path} cannot be read ({error.strerror}); {again}.") from None
    if found != recorded:
        raise UserError(f"token file {path} changed since it was written (checksum {found}, not {recorded}); {again}.")
