"""Rendering with the model's own chat template."""

import json
import logging
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

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

    def last_control_token(self, text: str) -> int:
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
        are tried in this order. Raises Rejected.
        """
        if not self._keeps_control_tokens:
            self._refuse_control_tokens(conversation)
        first: Rejected | None = None
        for messages in _variants(self._named(conversation.messages)):
            try:
                text = self(messages, conversation.tools, False)
            except Rejected as error:
                first = first or error
                continue
            return _require_unicode(text), messages
        raise first

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


def _variants(messages: Messages) -> list[Messages]:
    if not any(message.get("tool_calls") for message in messages):
        return [messages]
    as_text = [_arguments_as_text(message) for message in messages]
    forms = [messages, as_text, [_never_null(message) for message in messages], [_never_null(m) for m in as_text]]
    return [*forms, _with_short_ids(messages)]


def _arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _with_short_ids(messages: Messages) -> Messages:
    """Calls and their results numbered in the one form that Mistral's templates take: nine letters and digits."""
    renamed: Messages = []
    calls: list[str] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("tool_calls"):
            waiting = [f"call{len(calls) + number:05}" for number in range(len(message["tool_calls"]))]
            calls += waiting
            pairs = zip(message["tool_calls"], waiting, strict=True)
            message = {**message, "tool_calls": [{**call, "id": identity} for call, identity in pairs]}
        elif message["role"] == "tool" and waiting:
            message = {**message, "tool_call_id": waiting[0]}
            waiting = waiting[1:] or waiting
        renamed.append(message)
    return renamed


def _never_null(message: dict[str, Any]) -> dict[str, Any]:
    return message if message["content"] is not None else {**message, "content": ""}


def _require_unicode(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = ord(text[error.start])
            kind = f"byte {found - 0xDC00:#04x}, not UTF-8" if 0xDC80 <= found <= 0xDCFF else "half a surrogate pair"
            raise Rejected("invalid_text", f"{kind}, after {text[max(0, error.start - 20) : error.start]!r}") from None
    return text
