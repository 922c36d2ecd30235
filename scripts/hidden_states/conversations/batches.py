"""Rows → samples, a batch at a time: the tokenizer is fastest on many texts at once."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from hidden_states.conversations.answers import Rendering
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import Renderer
from hidden_states.conversations.rows import Row
from hidden_states.conversations.shapes import Conversation, TokenIds, read_shape
from hidden_states.conversations.spans import SpanFinder
from hidden_states.conversations.token_mask import TokenMasker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_ROWS = 256
BATCH_BYTES = 4 << 20
LARGE_CHARS, MANY_TURNS = 1 << 20, 60
"""A text longer than this, or with more answers, is counted in tokens before anything else is done with it: finding
the answers renders the row up to each of them."""


@dataclass(frozen=True)
class Sample:
    """An accepted row, or one of its turns: ``input_ids`` int64 [num_tokens], ``loss_mask`` int8 [num_tokens].

    ``has_mask`` is False for a row of ids that came without one. ``turn``: the last message with loss, where the row
    gives a sample for each of several answers; else -1.
    """

    input_ids: numpy.ndarray
    loss_mask: numpy.ndarray
    has_mask: bool = True
    turn: int = -1


@dataclass
class _Rendered:
    conversation: Conversation
    renderings: list[Rendering]


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
    """Renders, encodes, masks and checks. ``num_ids``: ids from 0 up to it (excluded) exist in the model; ``eos_ids``:
    at which it stops."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        settings: dict[str, Any],
        num_ids: int,
        eos_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer, self._num_ids = tokenizer, num_ids
        self._settings = settings
        self._max_tokens: int = settings["max_tokens"]
        self._min_loss_tokens: int = settings["min_loss_tokens"]
        self._masker = TokenMasker(tokenizer, eos_ids)

    @cached_property
    def renderer(self) -> Renderer:
        """Made for the first conversation, so that a corpus of ids needs no chat template."""
        return Renderer(self._tokenizer, self._settings.get("control_tokens", "reject") == "keep")

    @cached_property
    def _spans(self) -> SpanFinder:
        return SpanFinder(self.renderer, self._settings.get("loss", "all") == "last")

    def results(self, batches: Iterable[list[Row]]) -> Iterator[list[tuple[Row, list[Sample] | Rejected]]]:
        """Each batch with one result a row, in order: the samples of the row, mostly one, or why there is none.

        The tokenizer encodes one batch in a thread, on every core, while the next one is rendered here. Raises
        UserError when the model has no chat template and a row needs it.
        """
        with ThreadPoolExecutor(1) as encoder:
            waiting = None
            for rows in batches:
                read = self._read_all(rows)
                texts = [one.text for result in read if isinstance(result, _Rendered) for one in result.renderings]
                encoding = encoder.submit(self._encode, texts)
                if waiting is not None:
                    yield self._finish(*waiting)
                waiting = (rows, read, encoding)
            if waiting is not None:
                yield self._finish(*waiting)

    def _read_all(self, rows: list[Row]) -> list[_Rendered | TokenIds | Rejected]:
        shapes = [self._attempt(self._shape, row) for row in rows]
        conversations = [shape for shape in shapes if isinstance(shape, Conversation)]
        if conversations:
            self.renderer.compare(conversations)
        return [self._attempt(self._render, shape) if isinstance(shape, Conversation) else shape for shape in shapes]

    def _finish(
        self, rows: list[Row], read: list[_Rendered | TokenIds | Rejected], encoding: Future[list[Any]]
    ) -> list[tuple[Row, list[Sample] | Rejected]]:
        encoded = iter(encoding.result())
        results = []
        for result in read:
            if isinstance(result, _Rendered):
                ids = [next(encoded) for _ in result.renderings]
                result = self._attempt(self._conversation_samples, result, ids)
            elif isinstance(result, TokenIds):
                result = self._attempt(self._ids_sample, result)
            results.append(result)
        return list(zip(rows, results, strict=True))

    def _attempt(self, step: Any, *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except Rejected as rejected:
            return rejected
        except RecursionError:
            return Rejected("invalid_json", "the row is nested too deeply")

    def _shape(self, row: Row) -> Conversation | TokenIds:
        if isinstance(row.value, Rejected):
            raise row.value
        return read_shape(row.value)

    def _render(self, conversation: Conversation) -> _Rendered:
        text, messages = self.renderer.whole(conversation)
        conversation = replace(conversation, messages=messages)
        is_large = len(text) > LARGE_CHARS or len(conversation.assistant_turns) > MANY_TURNS
        if is_large and (count := len(self._encode_alone(text))) > self._max_tokens:
            conversation, text = self._truncated(conversation, count)
        return _Rendered(conversation, self._spans.find(conversation, text))

    def _truncated(self, conversation: Conversation, num_tokens: int) -> tuple[Conversation, str]:
        """The conversation up to the last answer with which it is short enough, and its text; ``num_tokens``: those
        of the whole. Raises Rejected."""
        if self._settings.get("over_length", "reject") == "reject":
            raise self._too_long(f"{num_tokens:,} tokens")
        turns = conversation.assistant_turns
        texts: dict[int, str] = {}

        def length(turn: int) -> int:
            texts[turn] = self.renderer(conversation.messages[: turn + 1], conversation.tools, False)
            return len(self._encode_alone(texts[turn]))

        fitting = bisect_right(turns, self._max_tokens, key=length)
        if not fitting:
            raise self._too_long(f"the first answer ends at {length(turns[0]):,} tokens")
        last = turns[fitting - 1]
        return replace(conversation, messages=conversation.messages[: last + 1]), texts[last]

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

    def _conversation_samples(self, rendered: _Rendered, encoded: list[list[int] | Rejected]) -> list[Sample]:
        longest = max((len(tokens) for tokens in encoded if not isinstance(tokens, Rejected)), default=0)
        if longest > self._max_tokens:
            conversation, text = self._truncated(rendered.conversation, longest)
            rendered = _Rendered(conversation, self._spans.find(conversation, text))
            encoded = [self._attempt(self._encode_alone, rendering.text) for rendering in rendered.renderings]
        samples = []
        for rendering, tokens in zip(rendered.renderings, encoded, strict=True):
            if isinstance(tokens, Rejected):
                raise tokens
            ids = self._checked_ids(tokens)
            mask, _ = self._masker.mask(rendering.text, ids, rendering.answers)
            turn = rendering.answers[-1].turn if len(rendered.renderings) > 1 else -1
            samples.append(Sample(ids, mask, turn=turn))
        return self._checked_loss(samples)

    def _ids_sample(self, row: TokenIds) -> list[Sample]:
        ids = self._checked_ids(row.input_ids)
        return self._checked_loss([Sample(ids, numpy.array(row.loss_mask, dtype=numpy.int8), row.has_mask)])

    def _checked_ids(self, ids: list[int]) -> numpy.ndarray:
        if not ids:
            raise Rejected("empty", "the conversation has no tokens")
        if len(ids) > self._max_tokens:
            raise self._too_long(f"{len(ids):,} tokens")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self._num_ids:
            bad = low if low < 0 else high
            raise Rejected("id_out_of_vocabulary", f"id {bad} at {ids.index(bad)}; the model has {self._num_ids:,} ids")
        return numpy.array(ids, dtype=numpy.int64)

    def _too_long(self, what: str) -> Rejected:
        return Rejected("too_long", f"{what}; conversations.max_tokens is {self._max_tokens:,}")

    def _checked_loss(self, samples: list[Sample]) -> list[Sample]:
        if (count := sum(int(sample.loss_mask.sum()) for sample in samples)) < self._min_loss_tokens:
            wanted = self._min_loss_tokens
            raise Rejected("no_loss_tokens", f"{count} tokens with loss; conversations.min_loss_tokens is {wanted}")
        return samples
