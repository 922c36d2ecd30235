"""From answers in a text to a mask over tokens, without character offsets: slow tokenizers have none.

A position b of the text lies between tokens k−1 and k exactly when encoding text[:b] gives ids[:k]: then the model,
given the text before b as its prompt, sees ids[:k]. Control tokens cut a text into parts that are encoded
independently, so it is enough to encode from the last control token before b on; usually that is a few characters, such
as ``<|im_start|>assistant\\n``, and always the same ones.

The model stops at the first end-of-turn token, one of ``eos_ids``: an answer's mask ends with it, whatever the template
puts behind (a line end, the end of the document). Where an answer is ended by the header of the next turn (GLM), that
token is in ``eos_ids``, and is the answer's too.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy

from hidden_states.conversations.answers import Answer
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import THINK_TAGS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_CHARS = 200
"""Longer texts are not kept for encoding again."""


class TokenMasker:
    """Turns spans into masks for one tokenizer; ``eos_ids``: at which the model stops."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", eos_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._id_of = {token.content: number for number, token in added.items()}
        names = sorted(self._id_of, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._is_added = _table(added)
        self._is_end = _table(added.keys() & set(eos_ids))  # an id that is a piece of a word ends nothing
        ends = [token.content for number, token in added.items() if token.special or number in eos_ids]
        self._ends_turns = frozenset(ends) - set(THINK_TAGS)
        self._encode_short = lru_cache(maxsize=1 << 14)(self._encode)

    def mask(self, text: str, ids: numpy.ndarray, answers: list[Answer]) -> tuple[numpy.ndarray, list[int]]:
        """int8 [num_tokens], 1 on the tokens of ``answers``, and behind which token each answer ends; ``ids`` is int64
        [num_tokens], the encoding of ``text``.

        White space at the end of an answer, behind a control token, is the template's and gets no loss.
        Raises Rejected when an answer or its prompt ends inside a token, or an answer goes on behind its end of turn.
        """
        boundaries = _Boundaries(self, text, ids)
        is_end = self._is_end.take(ids, mode="clip")
        mask = numpy.zeros(ids.size, dtype=numpy.int8)
        ends = []
        for answer in answers:
            begin = boundaries.token_at(answer.prompt_end)  # the model is given whole tokens
            if answer.begin > answer.prompt_end:
                begin = boundaries.token_at(answer.begin)
            end = boundaries.token_at(boundaries.end_of_turn(answer.begin, answer.end))
            if (stops := numpy.flatnonzero(is_end[begin:end])).size:
                stop = begin + int(stops[0]) + 1
                self._require_nothing_said(ids[stop:end])
                end = stop
            elif end < ids.size and is_end[end]:
                end += 1
            mask[begin:end] = 1
            ends.append(end)
        return mask, ends

    def _require_nothing_said(self, rest: numpy.ndarray) -> None:
        words = rest[~self._is_added.take(rest, mode="clip")]
        if words.size and self._tokenizer.decode(words.tolist()).strip():
            raise Rejected("mask_ambiguous", "an answer goes on behind a token at which the model stops")

    def may_end_a_turn(self, added_token: str) -> bool:
        return added_token in self._ends_turns

    def added_places(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Where in ``ids`` the added tokens are."""
        return self._is_added.take(ids, mode="clip").nonzero()[0]

    def added_in_text(self, text: str) -> list[tuple[int, int, int]]:
        """(begin, end, id) of every added token in ``text``."""
        return [(*match.span(), self._id_of[match.group()]) for match in self._pattern.finditer(text)]

    def encode(self, text: str) -> tuple[int, ...]:
        return self._encode_short(text) if len(text) <= CACHED_CHARS else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _table(chosen: Collection[int]) -> numpy.ndarray:
    """bool, True at the ids that are chosen; its last entry stands for all higher ids, of which none is."""
    table = numpy.zeros(max(chosen, default=-1) + 2, dtype=bool)
    table[list(chosen)] = True
    return table


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
        if last < 0 or self._ends[last] <= begin or self._text[self._ends[last] : end].strip():
            return end
        name = self._text[self._begins[last] : self._ends[last]]
        return self._ends[last] if self._masker.may_end_a_turn(name) else end

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
