"""The rows of the input files, one at a time: JSON arrays, single JSON objects, and JSON lines.

The content decides, not the name: an array begins with ``[``; of the rest, a file whose first line is not complete
JSON but whose whole is (an indented object) is one row, and any other is read by lines. Memory does not grow with
the file: what is held at a time is one row and a block of the file.

Bytes that are not UTF-8 become lone surrogates here, so that only a row whose text has them is rejected later on.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hidden_states.conversations.json_array import Element, elements
from hidden_states.conversations.reasons import Rejected
from hidden_states.errors import UserError

log = logging.getLogger(__name__)

MAX_ROW_BYTES = 256 << 20
UTF8_MARK = b"\xef\xbb\xbf"
WHITE = b" \t\r\n"


@dataclass(frozen=True)
class Row:
    """One row: ``value`` is the parsed JSON, or the Rejected that says why there is none.

    ``source_row`` counts the rows of its file from 0 (blank lines are none); ``num_bytes`` is its size in the file.
    """

    source_file: str
    source_row: int
    value: Any
    num_bytes: int


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of ``path``, good or not, in order.

    Raises UserError naming the file when it cannot be read, holds nothing, or no row of it is JSON (for an indented
    or array file: when it breaks off before the first row).
    """
    try:
        with open(path, "rb") as stream:
            count = good = 0
            for value, num_bytes in _values(path, stream):
                good += not isinstance(value, Rejected)
                yield Row(str(path), count, value, num_bytes)
                count += 1
    except OSError as error:
        raise UserError(f"conversations file {path} cannot be read: {error.strerror or error}.") from error
    if not count:
        raise UserError(f"conversations file {path} is empty; remove it from config key conversations.files.")
    if not good:
        raise UserError(
            f"conversations file {path} is not JSON: not one of its {count:,} row(s) is. It must be a JSON array, one "
            "JSON object, or JSON lines, in UTF-8."
        )


def _values(path: Path, stream: BinaryIO) -> Iterator[tuple[Any, int]]:
    start = _skip_mark_and_white(stream)
    stream.seek(start)
    first = stream.read(1)
    stream.seek(start)
    if first == b"[":
        for element in elements(stream, MAX_ROW_BYTES):
            if element.broken_off:
                log.warning("conversations file %s breaks off: %s", path, element.problem)
            yield _array_value(element), element.num_chars
        return
    if first == b"{" and (whole := _indented_object(stream)) is not None:
        yield whole
        return
    stream.seek(start)
    yield from _lines(stream)


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
        elif line := line.strip(WHITE):
            yield _parse(line, f"line {number}"), num_bytes


def _indented_object(stream: BinaryIO) -> tuple[Any, int] | None:
    """The one object of the file, when its first line is not complete JSON but the whole file is."""
    if not isinstance(_parse(stream.readline(MAX_ROW_BYTES).strip(WHITE), "the first line"), Rejected):
        return None
    stream.seek(0)
    content = stream.read(MAX_ROW_BYTES + 1).removeprefix(UTF8_MARK).strip(WHITE)
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
    position = len(UTF8_MARK) if stream.read(len(UTF8_MARK)) == UTF8_MARK else 0
    stream.seek(position)
    while block := stream.read(1 << 16):
        stripped = block.lstrip(WHITE)
        position += len(block) - len(stripped)
        if stripped:
            break
    return position
