"""From spans of characters to a mask over tokens, without character offsets: slow tokenizers have none.

A position b of the text lies between tokens k−1 and k exactly when encoding text[:b] gives ids[:k]: then the model,
given the text before b as its prompt, sees ids[:k]. Control tokens cut a text into parts that are encoded
independently, so it is enough to encode from the last control token before b on; usually that is a few characters, such
as ``<|im_start|>assistant\\n``, and always the same ones.
"""

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy

from hidden_states.conversations.markers import Span
from hidden_states.conversations.reasons import Rejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_CHARS = 200
"""Longer texts are not kept for encoding again."""


class TokenMasker:
    """Turns spans into masks for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._id_of = {token.content: number for number, token in added.items()}
        names = sorted(self._id_of, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._is_added = numpy.zeros(max(added, default=-1) + 1, dtype=bool)
        self._is_added[list(added)] = True
        self._encode_short = lru_cache(maxsize=1 << 14)(self._encode)

    def mask(self, text: str, ids: numpy.ndarray, spans: list[Span], trim: bool) -> numpy.ndarray:
        """int8 [num_tokens], 1 on the tokens of ``spans``; ``ids`` is int64 [num_tokens], the encoding of ``text``.

        ``trim``: white space at the end of a span, behind a control token, is the template's and gets no loss.
        Raises Rejected when a span begins or ends inside a token.
        """
        boundaries = _Boundaries(self, text, ids)
        mask = numpy.zeros(ids.size, dtype=numpy.int8)
        for begin, end in spans:
            if trim:
                end = boundaries.end_of_turn(begin, end)
            mask[boundaries.token_at(begin) : boundaries.token_at(end)] = 1
        return mask

    def added_places(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Where in ``ids`` the added tokens are."""
        inside = ids < self._is_added.size
        return (
            numpy.flatnonzero(inside & self._is_added[numpy.where(inside, ids, 0)]) if self._is_added.size else ids[:0]
        )

    def added_in_text(self, text: str) -> list[tuple[int, int, int]]:
        """(begin, end, id) of every added token in ``text``."""
        return [(*match.span(), self._id_of[match.group()]) for match in self._pattern.finditer(text)]

    def encode(self, text: str) -> tuple[int, ...]:
        return self._encode_short(text) if len(text) <= CACHED_CHARS else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class _Boundaries:
    """Positions of one text as token numbers."""

    def __init__(self, masker: TokenMasker, text: str, ids: numpy.ndarray) -> None:
        self._masker, self._text, self._ids = masker, text, ids
        found, places = masker.added_in_text(text), masker.added_places(ids)
        if [number for _, _, number in found] != ids[places].tolist():
            found, places = [], places[:0]  # the tokenizer sees control tokens in another way: count from the start
        self._begins = [begin for begin, _, _ in found]
        self._ends = [end for _, end, _ in found]
        self._places = places

    def end_of_turn(self, begin: int, end: int) -> int:
        """``end``, or the end of the control token behind which only white space is left."""
        last = bisect_right(self._ends, end) - 1
        if last >= 0 and self._ends[last] > begin and not self._text[self._ends[last] : end].strip():
            return self._ends[last]
        return end

    def token_at(self, position: int) -> int:
        """How many tokens come before this character. Raises Rejected when it is inside a token."""
        if position == len(self._text):
            return self._ids.size
        after = bisect_left(self._begins, position)
        if after < len(self._begins) and self._begins[after] == position:
            return int(self._places[after])
        before = bisect_right(self._ends, position) - 1
        if before >= 0:
            if self._ends[before] == position:
                return int(self._places[before]) + 1
            start, first = self._begins[before], int(self._places[before])
            if (count := self._fits(start, position, first)) is not None:
                return first + count
        if (count := self._fits(0, position, 0)) is not None:
            return count
        around = self._text[max(0, position - 20) : position + 20]
        raise Rejected("mask_ambiguous", f"an answer begins or ends inside a token, near {around!r}")

    def _fits(self, start: int, end: int, first: int) -> int | None:
        """Number of tokens of text[start:end], when those are the ids from number ``first`` on."""
        part = self._masker.encode(self._text[start:end])
        return len(part) if tuple(self._ids[first : first + len(part)].tolist()) == part else None
