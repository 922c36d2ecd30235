"""Which characters of a rendered conversation the assistant said: exactly, or not at all.

Templates with ``{% generation %}`` say it themselves. Others must only append: the rendering of the turns before an
answer, with the generation prompt, and the rendering up to and with the answer must both be beginnings of the whole
text. The answer is what lies between the two. Templates that rewrite earlier turns fail this, and the row is rejected.
"""

from hidden_states.conversations.markers import Span, has_markers, marked_spans
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import Messages, Renderer
from hidden_states.conversations.shapes import Conversation

PROBE = "zqx"


class SpanFinder:
    """Finds the assistant's spans in what ``renderer`` renders."""

    def __init__(self, renderer: Renderer) -> None:
        self._render = renderer
        self._generation_prompt: str | None = None
        self._prompts_rightly = False

    def find(self, conversation: Conversation, messages: Messages, text: str) -> tuple[list[Span], bool]:
        """Characters [begin, end) of each answer in ``text``, the rendering of ``messages``, and whether the template
        marked them. What it did not mark may end in white space that belongs to the template.

        Raises Rejected.
        """
        answers = conversation.assistant_turns
        template = self._render.template(conversation.tools)
        if has_markers(template):
            spans = marked_spans(template, self._render.variables(messages, conversation.tools, False), text)
            if spans is not None and len(spans) == len(answers):
                _require_words(messages, answers, spans, text)
            if spans is not None:
                return spans, True
        spans = self._append_only(conversation, messages, text, answers)
        _require_words(messages, answers, spans, text)
        return spans, False

    def _append_only(self, conversation: Conversation, messages: Messages, text: str, answers: list[int]) -> list[Span]:
        self._require_generation_prompt()
        spans = []
        for turn in answers:
            begin = self._begin(conversation, messages, turn, text)
            end = len(text)
            if turn + 1 < len(messages):
                upto = self._prefix(conversation, messages[: turn + 1], False, f"up to turn {turn}")
                if not text.startswith(upto):
                    raise Rejected("mask_ambiguous", f"the template changes turn {turn} when later turns follow")
                end = len(upto)
            if not (spans[-1][1] if spans else 0) <= begin < end:
                raise Rejected("mask_ambiguous", f"the template renders nothing for turn {turn}")
            spans.append((begin, end))
        return spans

    def _begin(self, conversation: Conversation, messages: Messages, turn: int, text: str) -> int:
        """Where the generation prompt of this turn ends."""
        if turn:
            prompt = self._prefix(conversation, messages[:turn], True, f"before turn {turn}, with generation prompt")
            if not text.startswith(prompt):
                raise Rejected("mask_ambiguous", f"what comes before turn {turn} is not what the model would be given")
            return len(prompt)
        words = messages[0]["content"]
        begin = text.find(words.strip()) if words and words.strip() else -1
        if begin < 0 or not text[:begin].endswith(self._generation_prompt):
            raise Rejected("mask_ambiguous", "the assistant speaks first, and where it begins cannot be told")
        return begin

    def _prefix(self, conversation: Conversation, messages: Messages, generation_prompt: bool, what: str) -> str:
        try:
            return self._render(messages, conversation.tools, generation_prompt)
        except Rejected as error:
            raise Rejected("mask_ambiguous", f"the template does not render the turns {what}: {error.detail}") from None

    def _require_generation_prompt(self) -> None:
        """Learn the generation prompt, once; a template that ignores ``add_generation_prompt`` although it writes a
        header before an answer would have that header in every mask."""
        if self._generation_prompt is None:
            question = [{"role": "user", "content": PROBE}]
            try:
                without = self._render(question, None, False)
                prompt = self._render(question, None, True)
                answered = self._render([*question, {"role": "assistant", "content": PROBE * 2}], None, False)
            except Rejected as error:
                raise Rejected("mask_ambiguous", f"the template refuses a plain question: {error.detail}") from None
            self._generation_prompt = prompt.removeprefix(without) if prompt.startswith(without) else ""
            between = answered[len(prompt) :].partition(PROBE * 2)[0] if answered.startswith(prompt) else ""
            self._prompts_rightly = bool(self._generation_prompt) or not between.strip()
        if not self._prompts_rightly:
            raise Rejected("mask_ambiguous", "the template writes a header before answers, but no generation prompt")


def _require_words(messages: Messages, answers: list[int], spans: list[Span], text: str) -> None:
    """What the assistant said must be in its span: templates leave out tool calls they do not know, cut reasoning out
    of a text, or write None for a content that is null."""
    for turn, (begin, end) in zip(answers, spans, strict=True):
        message, said = messages[turn], text[begin:end]
        for call in message.get("tool_calls", ()):
            if call["function"]["name"] not in said:
                raise Rejected("template_error", f"the template leaves out the tool call of turn {turn}")
        words = (message["content"] or "").strip()
        if words not in said and _squeeze(words) not in _squeeze(said):
            raise Rejected("mask_ambiguous", f"the template changes the words of turn {turn}")


def _squeeze(text: str) -> str:
    """Without white space, the one thing a template may trim or add."""
    return "".join(text.split())
