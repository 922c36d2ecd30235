"""A JSON array read element by element, so that one broken element costs one element and not the file.

Streaming parsers stop for good at the first error, and the fast ones replace half surrogate pairs without a word.
Here the standard library's parser is tried at the start of each element; where it fails, the element's end is found
by its brackets and strings alone, and reading goes on behind it.
"""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

BLOCK_BYTES = 1 << 20
STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\],]', re.DOTALL)
WHITE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Element:
    """One element: ``value``, or what is wrong with it in ``problem`` (else empty).

    ``broken_off``: the array ends here without its bracket, or cannot be read any further.
    """

    value: Any
    num_chars: int
    problem: str = ""
    broken_off: bool = False


class _Buffer:
    """The text from the current element on; ``grow`` appends as much again as it holds."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.text, self.position, self.ended = stream, "", 0, False
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def grow(self) -> bool:
        """Read more; False at the end of the file."""
        if self.ended:
            return False
        block = self._stream.read(max(BLOCK_BYTES, len(self.text) - self.position))
        self.ended = not block
        self.text = self.text[self.position :] + self._decoder.decode(block, final=self.ended)
        self.position = 0
        return True

    def skip_white(self) -> str:
        """Move to the next character that is not white space and return it; empty at the end of the file."""
        while True:
            self.position = WHITE.match(self.text, self.position).end()
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.grow():
                return ""


def elements(stream: BinaryIO, max_chars: int) -> Iterator[Element]:
    """The elements of the array that begins at the stream's position.

    An element longer than ``max_chars``, or an array that breaks off, ends the reading with one last Element that
    says so.
    """
    buffer = _Buffer(stream)
    buffer.skip_white()
    buffer.position += 1
    first, count = True, 0
    while True:
        mark = buffer.skip_white()
        if mark == "]":
            buffer.position += 1
            if buffer.skip_white():
                yield Element(None, 0, f"after element {count}: the array has ended, but the file goes on", True)
            return
        if mark == "," and not first:
            buffer.position += 1
            if (mark := buffer.skip_white()) == "]":
                continue
        elif mark and not first:
            yield Element(None, 0, f"after element {count}: no comma; what follows cannot be read", True)
            return
        if mark == "":
            yield Element(None, 0, f"the array ends after element {count} without its bracket", True)
            return
        element = _next(buffer, count, max_chars)
        yield element
        if element.broken_off:
            return
        first, count = False, count + 1


def _next(buffer: _Buffer, number: int, max_chars: int) -> Element:
    decoder = json.JSONDecoder()
    while True:
        problem = ""
        try:
            value, end = decoder.raw_decode(buffer.text, buffer.position)
        except json.JSONDecodeError as error:
            problem = f"element {number}: {error.msg} at character {error.pos - buffer.position}"
        except (ValueError, RecursionError) as error:
            problem = f"element {number}: {error}"
        if problem:
            value, end = None, _element_end(buffer.text, buffer.position)
        if end is not None and (end < len(buffer.text) or buffer.ended):
            size, buffer.position = end - buffer.position, end
            return Element(value, size, problem)
        if len(buffer.text) - buffer.position > max_chars:
            return Element(None, 0, f"element {number} is longer than {max_chars:,} characters", True)
        if not buffer.grow():
            rest = len(buffer.text) - buffer.position
            return Element(None, rest, f"element {number} is cut short ({rest:,} characters of it)", True)


def _element_end(text: str, start: int) -> int | None:
    """Where the element at ``start`` ends by brackets and strings alone: before the comma or bracket that follows
    it. None when the text ends first, or in the middle of a string."""
    depth = 0
    for match in STRUCTURE.finditer(text, start):
        mark = match.group()
        if mark == '"':
            return None
        if mark in "{[":
            depth += 1
        elif mark in "}]":
            if depth == 0:
                return match.start()
            depth -= 1
            if depth == 0:
                return match.end()
        elif mark == "," and depth == 0:
            return match.start()
    return None
