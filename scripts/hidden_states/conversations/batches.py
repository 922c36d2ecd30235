"""Rows → samples, a batch at a time: the tokenizer is fastest on many texts at once."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import Messages, Renderer
from hidden_states.conversations.rows import Row
from hidden_states.conversations.shapes import Conversation, TokenIds, read_shape
from hidden_states.conversations.spans import SpanFinder
from hidden_states.conversations.token_mask import TokenMasker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_ROWS = 256
BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Sample:
    """An accepted row: ``input_ids`` int64 [num_tokens], ``loss_mask`` int8 [num_tokens].

    ``has_mask`` is False for a row of ids that came without one.
    """

    input_ids: numpy.ndarray
    loss_mask: numpy.ndarray
    has_mask: bool = True


@dataclass
class _Rendered:
    conversation: Conversation
    messages: Messages
    text: str


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Lists of rows, each of at most BATCH_ROWS rows and about BATCH_BYTES."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.num_bytes
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class BatchTokenizer:
    """Renders, encodes, masks and checks. ``num_ids``: ids from 0 up to it (excluded) exist in the model."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: dict[str, Any], num_ids: int) -> None:
        self._tokenizer, self._num_ids = tokenizer, num_ids
        self._max_tokens: int = settings["max_tokens"]
        self._min_loss_tokens: int = settings["min_loss_tokens"]
        self._masker = TokenMasker(tokenizer)

    @cached_property
    def renderer(self) -> Renderer:
        """Made for the first conversation, so that a corpus of ids needs no chat template."""
        return Renderer(self._tokenizer)

    @cached_property
    def _spans(self) -> SpanFinder:
        return SpanFinder(self.renderer)

    def results(self, batches: Iterable[list[Row]]) -> Iterator[list[tuple[Row, Sample | Rejected]]]:
        """Each batch with one result a row, in order.

        The tokenizer encodes one batch in a thread, on every core, while the next one is rendered here. Raises
        UserError when the model has no chat template and a row needs it.
        """
        with ThreadPoolExecutor(1) as encoder:
            waiting = None
            for rows in batches:
                read = self._read_all(rows)
                texts = [result.text for result in read if isinstance(result, _Rendered)]
                encoding = encoder.submit(self._encode, texts)
                if waiting is not None:
                    yield self._finish(*waiting)
                waiting = (rows, read, encoding)
            if waiting is not None:
                yield self._finish(*waiting)

    def _read_all(self, rows: list[Row]) -> list[_Rendered | TokenIds | Rejected]:
        read = [self._attempt(self._read, row) for row in rows]
        first = next((result for result in read if isinstance(result, _Rendered)), None)
        if first is not None and not self.renderer.agrees(first.conversation):
            read = [self._attempt(self._read, row) for row in rows]
        return read

    def _finish(
        self, rows: list[Row], read: list[_Rendered | TokenIds | Rejected], encoding: Future[list[Any]]
    ) -> list[tuple[Row, Sample | Rejected]]:
        encoded = iter(encoding.result())
        results = []
        for result in read:
            if isinstance(result, _Rendered):
                result = self._attempt(self._conversation_sample, result, next(encoded))
            elif isinstance(result, TokenIds):
                result = self._attempt(self._ids_sample, result)
            results.append(result)
        return list(zip(rows, results, strict=True))

    def _attempt(self, step: Any, *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except Rejected as rejected:
            return rejected

    def _read(self, row: Row) -> _Rendered | TokenIds:
        if isinstance(row.value, Rejected):
            raise row.value
        shape = read_shape(row.value)
        if isinstance(shape, TokenIds):
            return shape
        text, messages = self.renderer.whole(shape)
        return _Rendered(shape, messages, text)

    def _encode(self, texts: list[str]) -> list[Any]:
        """The ids of each text, or the Rejected of one that the tokenizer cannot take."""
        if not texts:
            return []
        try:
            return self._tokenizer(
                texts,
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        except Exception:  # remote code can raise anything; find the text that it does not take
            return [self._attempt(self._encode_alone, text) for text in texts]

    def _encode_alone(self, text: str) -> list[int]:
        try:
            return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        except Exception as error:
            raise Rejected("invalid_text", f"the tokenizer fails: {type(error).__name__}: {error}"[:300]) from None

    def _conversation_sample(self, rendered: _Rendered, encoded: list[int] | Rejected) -> Sample:
        if isinstance(encoded, Rejected):
            raise encoded
        ids = self._checked_ids(encoded)
        spans, marked = self._spans.find(rendered.conversation, rendered.messages, rendered.text)
        return self._checked_loss(Sample(ids, self._masker.mask(rendered.text, ids, spans, trim=not marked)))

    def _ids_sample(self, row: TokenIds) -> Sample:
        ids = self._checked_ids(row.input_ids)
        return self._checked_loss(Sample(ids, numpy.array(row.loss_mask, dtype=numpy.int8), row.has_mask))

    def _checked_ids(self, ids: list[int]) -> numpy.ndarray:
        if not ids:
            raise Rejected("empty", "the conversation has no tokens")
        if len(ids) > self._max_tokens:
            raise Rejected("too_long", f"{len(ids):,} tokens; conversations.max_tokens is {self._max_tokens:,}")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self._num_ids:
            bad = low if low < 0 else high
            raise Rejected("id_out_of_vocabulary", f"id {bad} at {ids.index(bad)}; the model has {self._num_ids:,} ids")
        return numpy.array(ids, dtype=numpy.int64)

    def _checked_loss(self, sample: Sample) -> Sample:
        if (count := int(sample.loss_mask.sum())) < self._min_loss_tokens:
            wanted = self._min_loss_tokens
            raise Rejected("no_loss_tokens", f"{count} tokens with loss; conversations.min_loss_tokens is {wanted}")
        return sample
