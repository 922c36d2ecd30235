"""The rows of the inputs, one at a time: JSON arrays, single JSON objects, JSON lines, parquet, data sets.

The content decides, not the name: a parquet file has its mark, an array begins with ``[``; of the rest, a file whose
first line is not complete JSON but whose whole is (an indented object) is one row, and any other is read by lines. All
but parquet may be packed. Memory does not grow with the file: what is held at a time is one row, or one batch of a
table, and a block of the file.

Bytes that are not UTF-8 become lone surrogates here, so that only a row whose text has them is rejected later on.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow

from hidden_states.conversations.archives import InputFile
from hidden_states.conversations.hub import dataset_batches, open_dataset
from hidden_states.conversations.json_array import Element, elements
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.sources import Source
from hidden_states.conversations.tables import batch_rows, open_parquet, parquet_batches
from hidden_states.errors import UserError

log = logging.getLogger(__name__)

MAX_ROW_BYTES = 256 << 20
UTF8_MARK = b"\xef\xbb\xbf"
PARQUET_MARK = b"PAR1"
WHITE = b" \t\r\n"

Values = Iterator[tuple[Any, int, int]]
"""Value, its size, and how far the input has been read, both in bytes."""


@dataclass(frozen=True)
class Row:
    """One row: ``value`` is the parsed JSON, or the Rejected that says why there is none.

    ``source_row`` counts the rows of its input from 0 (blank lines are none); ``num_bytes`` is its size, unpacked, or
    about that for a row of a table; ``position`` of its input's bytes on the disk have been read with it.
    """

    source_file: str
    source_row: int
    value: Any
    num_bytes: int
    position: int = 0


class Input:
    """An input that has been found: its ``name`` in the rows, ``num_bytes`` on the disk, and its rows."""

    def __init__(self, source: Source) -> None:
        """Raises UserError for a data set that cannot be had, or a file that cannot be read."""
        self._source, self.name = source, source.name
        self._dataset = open_dataset(source) if source.is_dataset else None
        try:
            self.num_bytes = sum(file.stat().st_size for file in source.files)
        except OSError as error:
            raise UserError(f"conversations file {error.filename} cannot be read: {error.strerror}.") from error
        if self._dataset is not None:
            self.num_bytes = int(self._dataset.data.nbytes)

    def rows(self) -> Iterator[Row]:
        """Every row, good or not, in order. Raises UserError as ``read_rows``."""
        if self._dataset is None:
            yield from read_rows(self._source.files[0])
            return
        count = 0
        for value, size, position in _table_values(dataset_batches(self._dataset), len(self._dataset), self.num_bytes):
            yield Row(self.name, count, value, size, position)
            count += 1
        if not count:
            raise UserError(f"the data set {self.name} has no rows; remove it from config key conversations.files.")


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of the file at ``path``, good or not, in order.

    Raises UserError naming the file when it cannot be read, holds nothing, or no row of it is JSON (for an indented
    or array file: when it breaks off before the first row).
    """
    count = good = 0
    problem = ""
    try:
        file = InputFile(path)
        try:
            for value, num_bytes, position in _values(file):
                good += not isinstance(value, Rejected)
                yield Row(str(path), count, value, num_bytes, position)
                count += 1
        finally:
            problem = file.problem
            file.close()
    except (OSError, pyarrow.ArrowException) as error:
        words = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"conversations file {path} cannot be read: {words}.") from error
    if not good and problem:
        raise UserError(f"conversations file {path} cannot be read: {problem}.")
    if not count:
        raise UserError(f"conversations file {path} is empty; remove it from config key conversations.files.")
    if not good:
        raise UserError(
            f"conversations file {path} is not JSON: not one of its {count:,} row(s) is. It must be a JSON array, one "
            "JSON object, or JSON lines, in UTF-8, or a parquet file."
        )


def _values(file: InputFile) -> Values:
    if file.head == PARQUET_MARK:
        table = open_parquet(str(file.path))
        yield from _table_values(parquet_batches(table), table.metadata.num_rows, file.size)
        return
    rejected = False
    for value, num_bytes in _json_values(file):
        rejected = isinstance(value, Rejected)
        if rejected and file.problem:
            value = Rejected(value.reason, f"{value.detail}: {file.problem}")
        yield value, num_bytes, file.position
    if file.problem:
        log.warning("conversations file %s: %s", file.path, file.problem)
        if not rejected:
            yield Rejected("invalid_json", file.problem), 0, file.position


def _table_values(batches: Iterable[pyarrow.RecordBatch | pyarrow.Table], num_rows: int, num_bytes: int) -> Values:
    """A batch that cannot be read is the last one, and one rejected row: nothing after it can be found."""
    done = 0
    try:
        for batch in batches:
            size = batch.nbytes // max(1, batch.num_rows)
            for value in batch_rows(batch):
                done += 1
                yield value, size, num_bytes * done // num_rows
    except (OSError, pyarrow.ArrowException) as error:
        if not done:
            raise
        words = " ".join(str(error).split())
        yield (
            Rejected("invalid_json", f"the table breaks off after {done:,} of {num_rows:,} rows: {words}"),
            0,
            num_bytes,
        )


def _json_values(file: InputFile) -> Iterator[tuple[Any, int]]:
    start = _skip_mark_and_white(file.open())

    def content() -> BinaryIO:
        stream = file.open()
        skipped = 0
        while skipped < start:
            skipped += len(stream.read(min(1 << 20, start - skipped)))
        return stream

    first = content().read(1)
    if first == b"[":
        for element in elements(content(), MAX_ROW_BYTES):
            if element.broken_off:
                log.warning("conversations file %s breaks off: %s", file.path, element.problem)
            yield _array_value(element), element.num_chars
        return
    if first == b"{" and (whole := _indented_object(content())) is not None:
        yield whole
        return
    yield from _lines(content())


def _array_value(element: Element) -> Any:
    return Rejected("invalid_json", element.problem) if element.problem else element.value


def _lines(stream: BinaryIO) -> Iterator[tuple[Any, int]]:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        num_bytes = len(line)
        if num_bytes > MAX_ROW_BYTES:
            while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
                num_bytes += len(rest)
            yield Rejected("invalid_json", f"line {number} is longer than {MAX_ROW_BYTES:,} bytes"), num_bytes
        elif line := line.strip(WHITE).removeprefix(UTF8_MARK):  # of a file that was appended to another
            yield _parse(line, f"line {number}"), num_bytes


def _indented_object(stream: BinaryIO) -> tuple[Any, int] | None:
    """The one object of the file, when its first line is not complete JSON but the whole file is."""
    line = stream.readline(MAX_ROW_BYTES)
    if not isinstance(_parse(line.strip(WHITE), "the first line"), Rejected):
        return None
    content = (line + stream.read(MAX_ROW_BYTES + 1 - len(line))).strip(WHITE)
    value = _parse(content, "the file")
    return None if isinstance(value, Rejected) else (value, len(content))


def _parse(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        return Rejected("invalid_json", f"{where}: {error.msg} at character {error.pos}")
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets thousands deep
        return Rejected("invalid_json", f"{where}: {error}")


def _skip_mark_and_white(stream: BinaryIO) -> int:
    """Where the content begins."""
    block = stream.read(1 << 16)
    position = len(UTF8_MARK) if block.startswith(UTF8_MARK) else 0
    block = block[position:]
    while block:
        stripped = block.lstrip(WHITE)
        position += len(block) - len(stripped)
        if stripped:
            break
        block = stream.read(1 << 16)
    return position
