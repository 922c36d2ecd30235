"""Rendering with the model's own chat template."""

import logging
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hidden_states.conversations.calls import never_null, variants, with_named_ids
from hidden_states.conversations.messages import REASONING_KEYS, texts
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.shapes import Conversation
from hidden_states.conversations.template_engine import compile_template
from hidden_states.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

Messages = list[dict[str, Any]]

TEMPLATE_DATE = datetime(2025, 1, 1)
"""What ``strftime_now`` gives. With the real date, the ids of every sample would change overnight, and with them
their keys: nothing in the store would be found again."""

THINK_TAGS = ("<think>", "</think>")
"""May be control tokens, but are also how a conversation's text marks reasoning."""


class Renderer:
    """Renders conversations to text. Raises UserError when the model has no chat template.

    ``keeps_control_tokens``: those written out in a text are not refused; the tokenizer makes control tokens of them,
    as it does in the server.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", keeps_control_tokens: bool = False) -> None:
        self.tokenizer, self._keeps_control_tokens = tokenizer, keeps_control_tokens
        template = tokenizer.chat_template
        if not template:
            raise UserError(
                f"{tokenizer.name_or_path}: the model has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json), so conversations cannot be rendered. Choose the instruction-tuned model, add "
                "a template, or bring rows with input_ids."
            )
        self._source = template if isinstance(template, str) else "\n".join(template.values())
        self._variables = {"strftime_now": TEMPLATE_DATE.strftime} if self.mentions("strftime_now") else {}
        self._reasoning_names = [name for name in REASONING_KEYS[1:] if self._reads(name)]
        self._special = dict(tokenizer.special_tokens_map)
        self._compiled = self._compile()
        control = [
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if token.special and token.content not in THINK_TAGS
        ]
        names = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)"
        self._control, self._ends_with_control = re.compile(names), re.compile(rf"(?:{names})\Z")

    @property
    def uses_date(self) -> bool:
        """Whether TEMPLATE_DATE is part of what the template may render."""
        return bool(self._variables)

    def mentions(self, *names: str) -> bool:
        """Whether one of these names is a word of the template's source."""
        return any(re.search(rf"\b{name}\b", self._source) for name in names)

    def ends_with_control_token(self, text: str) -> bool:
        return self._ends_with_control.search(text[-100:]) is not None

    def first_control_token(self, text: str, begin: int) -> str:
        """The one that stands at ``begin``; empty where none does."""
        found = self._control.match(text, begin)
        return found.group() if found else ""

    def last_control_token(self, text: str) -> str:
        """Empty without one."""
        return next(reversed(self._control.findall(text)), "")

    def start_of_last_control_token(self, text: str) -> int:
        """Where it begins; 0 without one."""
        begin = 0
        for match in self._control.finditer(text):
            begin = match.start()
        return begin

    def start_of_control_token(self, text: str, position: int) -> int:
        """Where the control token begins that ``position`` is inside of; ``position`` outside of any."""
        inside = (match.start() for match in self._control.finditer(text) if match.start() < position < match.end())
        return next(inside, position)

    def _reads(self, key: str) -> bool:
        """Whether the template may take this key out of a message."""
        return re.search(rf"\.{key}\b|['\"]{key}['\"]", self._source) is not None

    def __call__(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        more: dict[str, Any] | None = None,
    ) -> str:
        """The text of ``messages``; ``more``: further variables. Raises Rejected with the template's own words."""
        try:
            if self._compiled is not None and messages:
                return self._compiled(self.variables(messages, tools, add_generation_prompt) | (more or {}))
            return self._apply(messages, tools, add_generation_prompt, **(more or {}))
        except Exception as error:  # a template can raise anything
            words = " ".join(str(error).split()) or "no message"
            raise Rejected("template_error", f"{type(error).__name__}: {words[:300]}") from None

    def template(self, tools: list[dict[str, Any]] | None) -> str:
        """The template's source; a model may have one of its own for conversations with tools."""
        template = self.tokenizer.chat_template
        return template if isinstance(template, str) else self.tokenizer.get_chat_template(None, tools)

    def variables(
        self, messages: Messages, tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> dict[str, Any]:
        """Everything that the template gets."""
        return {
            **self._special,
            **self._variables,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }

    def compare(self, conversations: Iterable[Conversation]) -> None:
        """Compare the text of the first of them that the template takes with that of the tokenizer's own
        ``apply_chat_template``; should they ever differ, the tokenizer's is used from then on."""
        for conversation in conversations if self._compiled is not None else ():
            texts = []
            for generation_prompt in (False, True):
                arguments = conversation.messages, conversation.tools, generation_prompt
                texts.append((self._text_of(self._apply, *arguments), self._text_of(self._own, *arguments)))
            if any(own != ours for own, ours in texts):
                log.warning("chat template: rendering differs from that of transformers, which is used from here on")
                self._compiled = None
            if texts != [(None, None)] * 2:
                return

    def _own(self, *arguments: Any) -> str:
        return self._compiled(self.variables(*arguments))

    def _text_of(self, render: Callable[..., str], *arguments: Any) -> str | None:
        try:
            return render(*arguments)
        except Exception:  # a template can raise anything; then both ways must
            return None

    def _compile(self) -> Callable[[dict[str, Any]], str] | None:
        """The one template compiled; None for a tokenizer that renders in its own way."""
        from transformers import PreTrainedTokenizerBase

        template = self.tokenizer.chat_template
        is_plain = type(self.tokenizer).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template
        if not is_plain or not isinstance(template, str):
            return None
        try:
            return compile_template(template)
        except Exception:  # then let transformers say what is wrong with it
            return None

    def _apply(
        self, messages: Messages, tools: list[dict[str, Any]] | None, add_generation_prompt: bool, **more: Any
    ) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._variables,
            **more,
        )

    def whole(self, conversation: Conversation) -> tuple[str, Messages]:
        """The text of the conversation, and the messages as the template took them.

        Templates differ in the form of tool calls: arguments as an object or as a text, content null or empty. They
        are tried in this order. Where the template would write null as a word, content is empty from the first; where a
        call's name is only in its id, calls get such ids. Raises Rejected.
        """
        if not self._keeps_control_tokens:
            self._refuse_control_tokens(conversation)
        first: Rejected | None = None
        named = self._named(conversation.messages)
        if any("tool_calls" in message for message in named) and self._names_calls_by_id:
            named = with_named_ids(named)
        if any(message["content"] is None for message in named) and self._writes_null:
            named = [never_null(message) for message in named]
        for messages in variants(named):
            try:
                text = self(messages, conversation.tools, False)
            except Rejected as error:
                first = first or error
                continue
            return _require_unicode(text), messages
        raise first

    @cached_property
    def _names_calls_by_id(self) -> bool:
        """Whether the template writes of a call its id and not its name (Kimi-K2.5)."""
        text = self._probe_call("")
        return "zqxid" in text and "zqxname" not in text

    @cached_property
    def _writes_null(self) -> bool:
        """Whether the template writes None, a word that nobody said, for the content that is null (GLM, MiniMax)."""
        return self._probe_call(None).count("None") > self._probe_call("").count("None")

    def _probe_call(self, content: str | None) -> str:
        """A question and a call with this content; empty where the template refuses both forms of arguments."""
        function = {"name": "zqxname", "arguments": {}}
        call = {"id": "zqxid", "type": "function", "function": function}
        for arguments in ({}, "{}"):
            function["arguments"] = arguments
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                return self([{"role": "user", "content": "zqx"}, answer], None, False)
            except Rejected:
                continue
        return ""

    def _named(self, messages: Messages) -> Messages:
        """The messages with the reasoning also under the names that some templates read it by."""
        if not self._reasoning_names or not any("reasoning_content" in message for message in messages):
            return messages
        return [
            message | dict.fromkeys(self._reasoning_names, message["reasoning_content"])
            if "reasoning_content" in message
            else message
            for message in messages
        ]

    def _refuse_control_tokens(self, conversation: Conversation) -> None:
        for index, message in enumerate(conversation.messages):
            for text in texts(message):
                if found := self._control.search(text):
                    raise Rejected("control_token_in_text", f"turn {index} ({message['role']}) holds {found.group()!r}")


def _require_unicode(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = ord(text[error.start])
            kind = f"byte {found - 0xDC00:#04x}, not UTF-8" if 0xDC80 <= found <= 0xDCFF else "half a surrogate pair"
            raise Rejected("invalid_text", f"{kind}, after {text[max(0, error.start - 20) : error.start]!r}") from None
    return text
