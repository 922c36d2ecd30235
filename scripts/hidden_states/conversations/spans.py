"""Which characters of a rendered conversation the assistant said: exactly, or not at all.

An answer is what lies between two renderings: that of the turns before it with the generation prompt (what the model
is given) and that up to and with it. Where both are beginnings of the rendering of the whole conversation, the
template only appends, and one text holds every answer. A template that rewrites history (drops the reasoning of
earlier answers, adds an empty think block to the newest, ends it with another token) makes one text for each answer,
or for each run of answers that it still leaves alone: the rendering up to and with that answer, as the model would
have seen it. Every answer has loss in exactly one text. Templates with ``{% generation %}`` say themselves where the
answers are; then only the texts are found as above.

What the template puts before an answer is never the assistant's: of the generation prompts that the template knows
(PROMPT_VARIABLES) the longest that fits is taken, and the rest of an empty think block is left out of the span.
"""

import re
from dataclasses import dataclass
from typing import Any

from hidden_states.conversations.markers import Span, has_markers, marked_spans
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import Messages, Renderer
from hidden_states.conversations.shapes import Conversation

PROBE = "zqx"

PROMPT_VARIABLES = ({"enable_thinking": False}, {"thinking": False}, {"enable_thinking": True}, {"thinking": True})
"""What users set beside the messages, tried in this order for the generation prompts that it gives. Conversations are
always rendered without: an answer without reasoning has the prompt of the non-thinking mode in its rendering."""

END_OF_THINKING = "</think>"
EMPTY_BLOCK = re.compile(r"\s*(?:<think>\s*)?</think>\s*")
OPENED = re.compile(r"\s*(?:<think>\s*)?(?:</think>\s*)?")
REASONING = re.compile(r"\A\s*(?:<think>)?(.*?)</think>", re.DOTALL)


@dataclass(frozen=True)
class Rendering:
    """One text to be tokenized and where the assistant speaks in it: ``spans``, characters [begin, end), in order.

    ``turns``: the message of each span; empty where a template's markers do not say whose they are.
    """

    text: str
    spans: list[Span]
    turns: list[int]


class SpanFinder:
    """Finds the assistant's spans in what ``renderer`` renders."""

    def __init__(self, renderer: Renderer) -> None:
        self._render = renderer
        self._prompts: list[str] | None = None
        self._prompts_rightly = False

    def find(self, conversation: Conversation, messages: Messages, text: str) -> list[Rendering]:
        """The texts that together hold every answer once; ``text`` is the rendering of ``messages``, and the only
        one where the template appends. A span may end in white space that belongs to the template.

        Raises Rejected, naming the turn, when one answer cannot be told exactly.
        """
        template = self._render.template(conversation.tools)
        if has_markers(template):
            variables = self._render.variables(messages, conversation.tools, False)
            spans = marked_spans(template, variables, text)
            if spans is not None and len(spans) != len(conversation.assistant_turns):
                return [Rendering(text, [_after_empty_block(text, span, {}) for span in spans], [])]
            if spans is not None:
                return self._split(_MarkedRow(self._render, template, conversation, messages), text)
        self._learn_prompts()
        return self._split(_Row(self._render, conversation, messages, self._prompts), text)

    def _split(self, row: "_Row", text: str) -> list[Rendering]:
        left = row.conversation.assistant_turns
        found: list[Rendering] = []
        upto = len(row.messages)
        while left:
            row.begin(text, upto)
            spans: list[Span] = []
            for turn in reversed(left):
                try:
                    span = row.span(turn)
                    if spans and span[1] > spans[-1][0]:
                        raise Rejected("mask_ambiguous", f"turn {turn} reaches into the answer after it")
                except Rejected:
                    if turn == upto - 1:
                        raise
                    break
                spans.append(span)
            if spans:
                count = len(spans)
                found.append(Rendering(text, spans[::-1], left[-count:]))
                left = left[:-count]
            if left:
                upto = left[-1] + 1
                text = row.rendered(upto, False, f"up to turn {upto - 1}")
        return found[::-1]

    def _learn_prompts(self) -> None:
        """Learn the generation prompts, once; a template that ignores ``add_generation_prompt`` although it writes a
        header before an answer would have that header in every mask."""
        if self._prompts is None:
            question = [{"role": "user", "content": PROBE}]
            try:
                prompt = self._render(question, None, True)
                answered = self._render([*question, {"role": "assistant", "content": PROBE * 2}], None, False)
                self._prompts = [self._prompt(question, {})]
            except Rejected as error:
                raise Rejected("mask_ambiguous", f"the template refuses a plain question: {error.detail}") from None
            between = answered[len(prompt) :].partition(PROBE * 2)[0] if answered.startswith(prompt) else ""
            self._prompts_rightly = bool(self._prompts[0]) or not between.strip()
            for variables in PROMPT_VARIABLES if self._prompts[0] else ():
                if self._render.mentions(*variables):
                    other = self._prompt(question, variables)
                    if other and other not in self._prompts:
                        self._prompts.append(other)
        if not self._prompts_rightly:
            raise Rejected("mask_ambiguous", "the template writes a header before answers, but no generation prompt")

    def _prompt(self, question: Messages, variables: dict[str, Any]) -> str:
        """What the generation prompt adds to a question."""
        without = self._render(question, None, False, variables)
        prompt = self._render(question, None, True, variables)
        return prompt.removeprefix(without) if prompt.startswith(without) else ""


class _Row:
    """The answers of one row in one of its renderings at a time; ``prompts``: the default generation prompt first."""

    def __init__(self, render: Renderer, conversation: Conversation, messages: Messages, prompts: list[str]) -> None:
        self._render, self.conversation, self.messages = render, conversation, messages
        self._default, self._longest_first = prompts[0], sorted(prompts, key=len, reverse=True)
        self._text, self._upto = "", 0

    def begin(self, text: str, upto: int) -> None:
        """From here on, ``text`` is the rendering of the first ``upto`` messages."""
        self._text, self._upto = text, upto

    def span(self, turn: int) -> Span:
        """Where the answer is in the text. Raises Rejected."""
        end = len(self._text)
        if turn + 1 < self._upto:
            upto = self.rendered(turn + 1, False, f"up to turn {turn}")
            if not self._text.startswith(upto):
                raise Rejected("mask_ambiguous", f"the template changes turn {turn} when later turns follow")
            end = len(upto)
        span = self._begin(turn), end
        if span[0] < end:
            span = _after_empty_block(self._text, span, self.messages[turn])
        if span[0] >= end:
            raise Rejected("mask_ambiguous", f"the template renders nothing for turn {turn}")
        _require_words(self.messages[turn], turn, self._text[span[0] : end])
        return span

    def rendered(self, upto: int, generation_prompt: bool, what: str) -> str:
        """The rendering of the first ``upto`` messages."""
        try:
            return self._render(self.messages[:upto], self.conversation.tools, generation_prompt)
        except Rejected as error:
            raise Rejected("mask_ambiguous", f"the template does not render the turns {what}: {error.detail}") from None

    def _begin(self, turn: int) -> int:
        """Where the generation prompt of this turn ends."""
        if turn == 0:
            return self._begin_of_all()
        prompt = self.rendered(turn, True, f"before turn {turn}, with generation prompt")
        begin = len(prompt) - len(self._default)
        if self._default and prompt.endswith(self._default) and self._text.startswith(prompt[:begin]):
            for other in self._longest_first:
                if self._text.startswith(other, begin):
                    return begin + len(other)
        if self._text.startswith(prompt):
            return len(prompt)
        raise Rejected(
            "mask_ambiguous",
            f"what comes before turn {turn} is not what the model would be given, which ends in {prompt[-40:]!r}",
        )

    def _begin_of_all(self) -> int:
        """Where the answer begins when no turn comes before it, so that there is no prompt to render: behind the
        generation prompt that comes last before its words."""
        words = (_reasoning(self.messages[0]) or self.messages[0]["content"] or "").strip()
        first = self._text.find(words) if words else -1
        for prompt in self._longest_first if first >= 0 else ():
            begin = self._text.rfind(prompt, 0, first) + len(prompt) if prompt else first
            if begin >= len(prompt) and OPENED.fullmatch(self._text, begin, first):
                return begin
        raise Rejected("mask_ambiguous", "the assistant speaks first, and where it begins cannot be told")


class _MarkedRow(_Row):
    """… of a template that marks them."""

    def __init__(self, render: Renderer, template: str, conversation: Conversation, messages: Messages) -> None:
        super().__init__(render, conversation, messages, [""])
        self._template = template
        self._spans: dict[int, Span] = {}

    def begin(self, text: str, upto: int) -> None:
        super().begin(text, upto)
        variables = self._render.variables(self.messages[:upto], self.conversation.tools, False)
        spans = marked_spans(self._template, variables, text) or []
        turns = [turn for turn in self.conversation.assistant_turns if turn < upto]
        self._spans = dict(zip(turns, spans, strict=True)) if len(turns) == len(spans) else {}

    def span(self, turn: int) -> Span:
        if turn not in self._spans:
            raise Rejected("mask_ambiguous", f"the template does not mark turn {turn}")
        span = _after_empty_block(self._text, self._spans[turn], self.messages[turn])
        _require_words(self.messages[turn], turn, self._text[span[0] : span[1]])
        return span


def _after_empty_block(text: str, span: Span, message: dict[str, Any]) -> Span:
    """The span without the empty think block at its beginning, or what the prompt has left of one: nobody thought."""
    block = None if _reasoning(message) else EMPTY_BLOCK.match(text, *span)
    if block is None:
        return span
    content = message.get("content") or ""
    begin = text.index(END_OF_THINKING, span[0]) + len(END_OF_THINKING)
    while begin < block.end() and not (content and text.startswith(content, begin)):
        begin += 1
    return begin, span[1]


def _reasoning(message: dict[str, Any]) -> str:
    """What the assistant thought, in its own field or written into the content; empty where it did not."""
    if thought := (message.get("reasoning_content") or "").strip():
        return thought
    written = REASONING.match(message.get("content") or "")
    return written.group(1).strip() if written else ""


def _require_words(message: dict[str, Any], turn: int, said: str) -> None:
    """What the assistant said must be in its span: templates leave out tool calls they do not know, cut reasoning out
    of a text, or write None for a content that is null."""
    for call in message.get("tool_calls", ()):
        if call["function"]["name"] not in said:
            raise Rejected("template_error", f"the template leaves out the tool call of turn {turn}")
    content, reasoning = message["content"] or "", _reasoning(message)
    if not _is_in(reasoning, said):
        raise Rejected("template_error", f"the template leaves out the reasoning of turn {turn}")
    words = content if reasoning else EMPTY_BLOCK.sub("", content, count=1) if EMPTY_BLOCK.match(content) else content
    if not _is_in(words.strip(), said):
        raise Rejected("mask_ambiguous", f"the template changes the words of turn {turn}")


def _is_in(words: str, said: str) -> bool:
    """Whether the words are there, but for white space, the one thing a template may trim or add."""
    return words in said or _squeeze(words) in _squeeze(said)


def _squeeze(text: str) -> str:
    return "".join(text.split())
