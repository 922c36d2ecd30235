"""One answer in a rendered text, and what must be true of it."""

import re
from typing import Any, NamedTuple

from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rendering import THINK_TAGS

BEGIN_OF_THINKING, END_OF_THINKING = THINK_TAGS
EMPTY_BLOCK = re.compile(r"\s*(?:<think>\s*)?</think>\s*")
CLOSED = re.compile(r"</think>\s*\Z")
REASONING = re.compile(r"\A\s*(?:<think>)?(.*?)</think>", re.DOTALL)


class Answer(NamedTuple):
    """Characters [begin, end) of a text are what the assistant said in message number ``turn`` (-1: not known).

    ``prompt_end``: where what the model is given ends. What the template puts between it and ``begin`` is nobody's.
    """

    prompt_end: int
    begin: int
    end: int
    turn: int = -1


class Rendering(NamedTuple):
    """A text to be tokenized, and the answers in it that have loss, in order."""

    text: str
    answers: list[Answer]


def without_empty_block(text: str, answer: Answer, message: dict[str, Any]) -> Answer:
    """The answer without the empty think block at its beginning, or what the prompt has left of one: nobody thought.

    Raises Rejected for such a block before reasoning, the prompt's own included: the template renders what the model
    would not have given.
    """
    block = EMPTY_BLOCK.match(text, answer.begin, answer.end)
    is_closed = block is not None or CLOSED.search(text, max(0, answer.begin - 40), answer.begin) is not None
    if is_closed and reasoning(message):
        raise Rejected(
            "mask_ambiguous", f"the template puts an empty think block before what turn {answer.turn} thought"
        )
    if block is None:
        return answer
    content = message.get("content") or ""
    begin = text.index(END_OF_THINKING, answer.begin) + len(END_OF_THINKING)
    while begin < block.end() and not (content and text.startswith(content, begin)):
        begin += 1
    return answer._replace(begin=begin)


def reasoning(message: dict[str, Any]) -> str:
    """What the assistant thought, in its own field or written into the content; empty where it did not."""
    if thought := (message.get("reasoning_content") or "").strip():
        return thought
    written = REASONING.match(message.get("content") or "")
    return written.group(1).strip() if written else ""


def _words(message: dict[str, Any]) -> str:
    """The content without the reasoning, or the empty think block, that is written into it."""
    content = message["content"] or ""
    written = None if message.get("reasoning_content") else REASONING.match(content)
    return (content[written.end() :] if written else content).strip()


def require_words(message: dict[str, Any], turn: int, said: str) -> None:
    """What the assistant said must be in its span: templates leave out tool calls they do not know, cut reasoning out
    of a text, or write None for a content that is null."""
    for call in message.get("tool_calls", ()):
        if call["function"]["name"] not in said:
            raise Rejected("template_error", f"the template leaves out the tool call of turn {turn}")
    if not _is_in(reasoning(message), said):
        raise Rejected("template_error", f"the template leaves out the reasoning of turn {turn}")
    if not _is_in(_words(message), said):
        raise Rejected("mask_ambiguous", f"the template changes the words of turn {turn}")


def _is_in(words: str, said: str) -> bool:
    """Whether the words are there, but for white space, the one thing a template may trim or add."""
    return words in said or _squeeze(words) in _squeeze(said)


def _squeeze(text: str) -> str:
    return "".join(text.split())
