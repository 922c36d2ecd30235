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
from functools import cached_property
from typing import Any

from hidden_states.conversations.answers import (
    BEGIN_OF_THINKING,
    END_OF_THINKING,
    Answer,
    Rendering,
    reasoning,
    require_words,
    without_empty_block,
)
from hidden_states.conversations.calls import variants
from hidden_states.conversations.markers import Span, has_markers, marked_spans, one_a_turn
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import Messages, Renderer
from hidden_states.conversations.shapes import Conversation

PROBE = "zqx"

PROMPT_VARIABLES = ({"enable_thinking": False}, {"thinking": False}, {"enable_thinking": True}, {"thinking": True})
"""What users set beside the messages, tried in this order for the generation prompts that it gives. Conversations are
always rendered without: an answer without reasoning has the prompt of the non-thinking mode in its rendering."""

OPENING = re.compile(r"<think>\s*\Z")
THINKING = re.compile(r"\s*</?think>\s*")
OPENED = re.compile(r"\s*(?:<think>\s*)?(?:</think>\s*)?")


class SpanFinder:
    """Finds the assistant's answers in what ``renderer`` renders; ``only_last``: just the last one of each row."""

    def __init__(self, renderer: Renderer, only_last: bool = False) -> None:
        self._render, self._only_last = renderer, only_last

    def find(self, conversation: Conversation, text: str) -> list[Rendering]:
        """The texts that together hold every answer once; ``text`` is the rendering of the whole, and the only one
        where the template appends. An answer may end in white space that belongs to the template.

        Raises Rejected, naming the turn, when one answer cannot be told exactly.
        """
        template = self._render.template(conversation.tools)
        if has_markers(template):
            variables = self._render.variables(conversation.messages, conversation.tools, False)
            spans = marked_spans(template, variables, text)
            if spans is not None:
                prompts = [""] if isinstance(self._prompts, Rejected) else self._prompts
                row = _MarkedRow(self._render, template, conversation, prompts)
                if one_a_turn(spans, len(conversation.assistant_turns)):
                    return self._split(row, text)
                if self._only_last:
                    raise Rejected("mask_ambiguous", "the template does not mark each answer once, so none is the last")
                return [row.as_marked(text, spans)]
        if isinstance(self._prompts, Rejected):
            raise Rejected(self._prompts.reason, self._prompts.detail)
        return self._split(_Row(self._render, conversation, self._prompts), text)

    def _split(self, row: "_Row", text: str) -> list[Rendering]:
        left = row.conversation.assistant_turns[-1:] if self._only_last else row.conversation.assistant_turns
        found: list[Rendering] = []
        upto = len(row.messages)
        while left:
            row.begin(text, upto)
            answers: list[Answer] = []
            for turn in reversed(left):
                try:
                    answer = row.answer(turn)
                    if answers and answer.end > answers[-1].prompt_end:
                        raise Rejected("mask_ambiguous", f"turn {turn} reaches into the answer after it")
                except Rejected as error:
                    if turn == upto - 1:
                        text, answer = row.put_together(turn, error)
                        answers.append(answer)
                    break
                answers.append(answer)
            if answers:
                found.append(Rendering(text, answers[::-1]))
                left = left[: -len(answers)]
            if left:
                upto = left[-1] + 1
                text = row.rendered(upto, False, f"up to turn {upto - 1}")
        return found[::-1]

    @cached_property
    def _prompts(self) -> list[str] | Rejected:
        """The generation prompts that the template knows, the default one first, or why they cannot be used: a
        template that ignores ``add_generation_prompt`` although it writes a header before an answer would have that
        header in every mask."""
        question = [{"role": "user", "content": PROBE}]
        try:
            prompts = [self._prompt(question, {})]
            prompt = self._render(question, None, True)
            answered = self._render([*question, {"role": "assistant", "content": PROBE * 2}], None, False)
        except Rejected as error:
            return Rejected("mask_ambiguous", f"the template refuses a plain question: {error.detail}")
        between = answered[len(prompt) :].partition(PROBE * 2)[0] if answered.startswith(prompt) else ""
        if not prompts[0] and between.strip():
            return Rejected("mask_ambiguous", "the template writes a header before answers, but no generation prompt")
        for variables in PROMPT_VARIABLES if prompts[0] else ():
            if self._render.mentions(*variables):
                other = self._prompt(question, variables)
                if other and other not in prompts:
                    prompts.append(other)
        return prompts

    def _prompt(self, question: Messages, variables: dict[str, Any]) -> str:
        """What the generation prompt adds to a question."""
        without = self._render(question, None, False, variables)
        prompt = self._render(question, None, True, variables)
        shared = next((i for i, (a, b) in enumerate(zip(without, prompt, strict=False)) if a != b), len(without))
        return prompt[self._render.start_of_control_token(prompt, shared) :] if shared < len(prompt) else ""


class _Row:
    """The answers of one row in one of its renderings at a time; ``prompts``: the default generation prompt first."""

    def __init__(self, render: Renderer, conversation: Conversation, prompts: list[str]) -> None:
        self._render, self.conversation, self.messages = render, conversation, conversation.messages
        self._prompts, self._default = prompts, prompts[0]
        self._longest_first = sorted(prompts, key=len, reverse=True)
        self._text, self._upto = "", 0

    def begin(self, text: str, upto: int) -> None:
        """From here on, ``text`` is the rendering of the first ``upto`` messages."""
        self._text, self._upto = text, upto

    def answer(self, turn: int) -> Answer:
        """The answer in the text. Raises Rejected."""
        end = len(self._text) if turn + 1 == self._upto else self._end(turn)
        begin = self._begin(turn)
        return self._checked(Answer(begin, begin, end, turn))

    def _checked(self, answer: Answer) -> Answer:
        self._require_thought(self._text[max(0, answer.begin - 40) : answer.begin], answer.turn)
        if answer.begin < answer.end:
            answer = without_empty_block(self._text, answer, self.messages[answer.turn])
        if answer.begin >= answer.end:
            raise Rejected("mask_ambiguous", f"the template renders nothing for turn {answer.turn}")
        require_words(self.messages[answer.turn], answer.turn, self._text[answer.begin : answer.end])
        return answer

    def _require_thought(self, given: str, turn: int) -> None:
        """Behind a prompt that opens a think block, the model would not begin with its answer. Raises Rejected."""
        if OPENING.search(given) and not reasoning(self.messages[turn]):
            raise Rejected("mask_ambiguous", f"the prompt makes the model think, but turn {turn} has no reasoning")

    def put_together(self, turn: int, error: Rejected) -> tuple[str, Answer]:
        """An answer of which the text is no rendering: the prompt as the template renders it for the model, and behind
        it the answer. For templates whose prompt changes once it is answered (Mistral puts the system prompt into the
        last question while that is the last turn; gpt-oss drops reasoning between tool calls), or that never render
        reasoning, not even of the newest turn (DeepSeek-R1, Kimi-K2-Thinking).

        Raises ``error`` where this cannot be done either.
        """
        if turn == 0:
            raise error
        prompt = self.rendered(turn, True, f"before turn {turn}, with generation prompt")
        probe = [*self.messages[:turn], {"role": "assistant", "content": PROBE * 2}]
        before, found, ending = self._render(probe, self.conversation.tools, False).rpartition(PROBE * 2)
        if not found:
            raise error
        try:
            return self._spliced(prompt, before, turn)
        except Rejected:
            if self.messages[turn].get("reasoning_content"):
                return self._as_before_a_call(prompt, ending, turn, error)
            return self._as_written(prompt, before, ending, turn, error)

    def _spliced(self, prompt: str, before: str, turn: int) -> tuple[str, Answer]:
        """The prompt, and the answer as the template renders it. ``before``: what it renders before another answer."""
        begin = before.rfind(self._default) + len(self._default)
        has_header = prompt.endswith(self._default) and begin >= len(self._default)
        if not self._default:
            has_header = self._header(before) == self._header(prompt)
        if not has_header or not self._text.startswith(before[:begin]):
            raise Rejected("mask_ambiguous", f"the answer of turn {turn} cannot be cut out")
        self._text = prompt + self._text[begin:]
        return self._text, self._checked(Answer(len(prompt), len(prompt), len(self._text), turn))

    def _as_before_a_call(self, prompt: str, ending: str, turn: int, error: Rejected) -> tuple[str, Answer]:
        """The answer as the template renders it with its reasoning where a call follows, and what ends a turn, for
        templates that drop the reasoning of every answer without a call, be it the newest (Kimi-K2.5)."""
        message = self.messages[turn]
        if message.get("tool_calls") or not self._default or not prompt.endswith(self._default):
            raise error
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
        calling = message | {"tool_calls": [call]}
        for said, probe in zip(variants([calling]), variants([calling | {"content": PROBE * 2}]), strict=True):
            try:
                text = self._render([*self.messages[:turn], *said], self.conversation.tools, False)
                probed = self._render([*self.messages[:turn], *probe], self.conversation.tools, False)
            except Rejected:
                continue
            _, found, behind = probed.rpartition(PROBE * 2)
            begin = len(prompt) - len(self._default)
            if found and behind and text.endswith(behind) and text.startswith(prompt[:begin]):
                self._text = text[: -len(behind)] + ending
                if begin := self._behind_longest_prompt(begin):
                    return self._text, self._checked(Answer(begin, begin, len(self._text), turn))
            break
        raise error

    def _as_written(self, prompt: str, before: str, ending: str, turn: int, error: Rejected) -> tuple[str, Answer]:
        """The prompt, a content that holds the reasoning written out, and what ends a turn: such a content is the
        model's own output, to the letter."""
        message = self.messages[turn]
        if not reasoning(message) or message.get("reasoning_content") or message.get("tool_calls"):
            raise error
        if self._header(before) != self._header(prompt):
            raise error
        prompt, content = self._after_opening(prompt, message["content"].strip(), error)
        text = prompt + content + ending
        return text, Answer(len(prompt), len(prompt), len(text), turn)

    def _after_opening(self, prompt: str, content: str, error: Rejected) -> tuple[str, str]:
        """Prompt and answer for a content that begins with reasoning: the prompt may open the think block itself."""
        base = prompt.removesuffix(self._default)
        prompts = [base + other for other in self._prompts] if base != prompt else [prompt]
        opening = next((found for found in map(OPENING.search, prompts) if found), None)
        if opening is not None:
            content = content.removeprefix(BEGIN_OF_THINKING).removeprefix(opening.group()[len(BEGIN_OF_THINKING) :])
            return opening.string, content
        if not content.startswith(BEGIN_OF_THINKING) or prompt.rstrip().endswith(END_OF_THINKING):
            raise error
        return prompt, content

    def _header(self, text: str) -> str:
        """From the last control token on, without tags of reasoning."""
        return "".join(THINKING.split(text[self._render.start_of_last_control_token(text) :]))

    def rendered(self, upto: int, generation_prompt: bool, what: str) -> str:
        """The rendering of the first ``upto`` messages."""
        try:
            return self._render(self.messages[:upto], self.conversation.tools, generation_prompt)
        except Rejected as error:
            raise Rejected("mask_ambiguous", f"the template does not render the turns {what}: {error.detail}") from None

    def _end(self, turn: int) -> int:
        """Where an answer ends that others follow."""
        upto = self.rendered(turn + 1, False, f"up to turn {turn}")
        if self._text.startswith(upto):
            return len(upto)
        # Some templates end every rendering without a generation prompt with a token of their own (Phi)
        end = len(self.rendered(turn + 1, True, f"up to turn {turn}, with generation prompt")) - len(self._default)
        if upto.startswith(self._text[:end]) and self._render.ends_with_control_token(self._text[:end].rstrip()):
            return end
        raise Rejected("mask_ambiguous", f"the template changes turn {turn} when later turns follow")

    def _begin(self, turn: int) -> int:
        """Where the generation prompt of this turn ends."""
        if turn == 0:
            return self._begin_of_all()
        prompt = self.rendered(turn, True, f"before turn {turn}, with generation prompt")
        begin = len(prompt) - len(self._default)
        is_default = bool(self._default) and prompt.endswith(self._default)
        if is_default and self._text.startswith(prompt[:begin]) and (found := self._behind_longest_prompt(begin)):
            return found
        if self._text.startswith(prompt):
            return len(prompt)
        self._require_thought(prompt, turn)
        raise Rejected(
            "mask_ambiguous",
            f"what comes before turn {turn} is not what the model would be given, which ends in {prompt[-40:]!r}",
        )

    def _behind_longest_prompt(self, begin: int) -> int:
        """Where the longest prompt ends that stands at ``begin``; 0 when none does."""
        return next((begin + len(prompt) for prompt in self._longest_first if self._text.startswith(prompt, begin)), 0)

    def _begin_of_all(self) -> int:
        """Where the answer begins when no turn comes before it, so that there is no prompt to render: behind the
        generation prompt that comes last before its words."""
        words = (reasoning(self.messages[0]) or self.messages[0]["content"] or "").strip()
        first = self._text.find(words) if words else -1
        for prompt in self._longest_first if first >= 0 else ():
            begin = self._text.rfind(prompt, 0, first) + len(prompt) if prompt else first
            if begin >= len(prompt) and OPENED.fullmatch(self._text, begin, first):
                return begin
        raise Rejected("mask_ambiguous", "the assistant speaks first, and where it begins cannot be told")


class _MarkedRow(_Row):
    """… of a template that marks them."""

    def __init__(self, render: Renderer, template: str, conversation: Conversation, prompts: list[str]) -> None:
        super().__init__(render, conversation, prompts)
        self._template = template
        self._spans: dict[int, Span] = {}

    def begin(self, text: str, upto: int) -> None:
        super().begin(text, upto)
        variables = self._render.variables(self.messages[:upto], self.conversation.tools, False)
        turns = [turn for turn in self.conversation.assistant_turns if turn < upto]
        spans = one_a_turn(marked_spans(self._template, variables, text) or [], len(turns))
        self._spans = dict(zip(turns, spans, strict=True)) if spans else {}

    def as_marked(self, text: str, spans: list[Span]) -> Rendering:
        """The text with all that is marked in it, where that is not one span for each answer. Raises Rejected for an
        answer that is nowhere in it."""
        self.begin(text, len(self.messages))
        said = "\n".join(text[begin:end] for begin, end in spans)
        for turn in self.conversation.assistant_turns:
            require_words(self.messages[turn], turn, said)
        answers = [Answer(*[self._behind_given(begin)] * 2, end) for begin, end in spans]
        return Rendering(text, [without_empty_block(text, answer, {}) for answer in answers])

    def put_together(self, turn: int, error: Rejected) -> tuple[str, Answer]:
        raise error

    def answer(self, turn: int) -> Answer:
        if turn not in self._spans:
            raise Rejected("mask_ambiguous", f"the template does not mark turn {turn}")
        begin, end = self._spans[turn]
        begin = self._behind_prompt(begin, turn)
        self._require_header(begin, turn)
        return self._checked(Answer(begin, begin, end, turn))

    def _require_header(self, begin: int, turn: int) -> None:
        """Some templates forget the header of an answer (DeepSeek-V3 that of a second call): the model would not have
        been given what stands there. Raises Rejected."""
        header = self._render.last_control_token(self._default)
        window = self._text[max(0, begin - len(self._longest_first[0]) - 40) : begin]
        if not header or self._render.last_control_token(window) == header:
            return
        if turn and self.rendered(turn, True, f"before turn {turn}, with generation prompt").endswith(self._default):
            raise Rejected("mask_ambiguous", f"the template writes no {header} before turn {turn}")

    def _behind_prompt(self, begin: int, turn: int) -> int:
        """Some templates mark more than the model says: its header, what the prompt opens, or an empty think block."""
        if (behind := self._behind_given(begin)) > begin:
            return behind
        header = self._render.first_control_token(self._text, begin)
        if not header:
            return begin
        try:
            return max(begin, self._begin(turn))
        except Rejected:  # the prompt goes another way than the rendering; its first token it does give
            return begin + len(header) * self._default.startswith(header)

    def _behind_given(self, begin: int) -> int:
        """Where the longest prompt ends that begins before ``begin``, or there, and does not end before it; ``begin``
        without one."""
        for prompt in filter(None, self._longest_first):
            for before in range(min(begin, len(prompt)), -1, -1):
                if self._text.startswith(prompt, begin - before):
                    return begin - before + len(prompt)
        return begin
