"""Which shape a row has, told per row, and the row in one common form.

| shape | recognised by | turns |
|---|---|---|
| ShareGPT | ``conversations`` | ``from`` and ``value`` (or ``role`` and ``content``) |
| OpenAI | ``messages`` | ``role`` and ``content`` (or ``from`` and ``value``) |
| token ids | ``input_ids``, optional ``loss_mask`` | – |

A row with ``input_ids`` is taken as it is, whatever else it holds. Without ``loss_mask`` every token has loss: that
is what ids alone can say, and ``summary.json`` counts such rows.
"""

from dataclasses import dataclass, field
from typing import Any

from hidden_states.conversations.messages import read_message, read_tools
from hidden_states.conversations.reasons import Rejected

SHAPES = ("conversations", "messages", "input_ids")
MEDIA_KEYS = ("image", "images", "video", "videos", "audio", "audios")


@dataclass(frozen=True)
class Conversation:
    """``messages`` in the form that chat templates read: role, content, tool_calls, …; ``tools`` may be None."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None

    @property
    def assistant_turns(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]


@dataclass(frozen=True)
class TokenIds:
    """A row that came as ids; ``has_mask`` is False where the mask is ours: all ones."""

    input_ids: list[int]
    loss_mask: list[int] = field(repr=False)
    has_mask: bool


def read_shape(row: Any) -> Conversation | TokenIds:
    """The row as a Conversation or TokenIds. Raises Rejected."""
    if not isinstance(row, dict):
        raise Rejected("unknown_shape", f"the row is {_kind(row)}, not an object")
    if "input_ids" in row:
        return _token_ids(row)
    present = [name for name in ("conversations", "messages") if row.get(name) is not None]
    if not present:
        raise Rejected("unknown_shape", _no_known_key(row))
    if len(present) > 1:
        raise Rejected("unknown_shape", "the row has both conversations and messages; keep one of them")
    for name in MEDIA_KEYS:
        if row.get(name):
            raise Rejected("multimodal", f"the row has {name}")
    turns = row[present[0]]
    if not isinstance(turns, list):
        raise Rejected("unknown_shape", f"{present[0]} is {_kind(turns)}, not a list")
    if not turns:
        raise Rejected("empty", f"{present[0]} has no turns")
    messages = [read_message(turn, index) for index, turn in enumerate(turns)]
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    conversation = Conversation(messages, read_tools(row.get("tools")))
    if not conversation.assistant_turns:
        raise Rejected("no_assistant_turn", f"the roles are {', '.join(message['role'] for message in messages)[:200]}")
    return conversation


def _token_ids(row: dict[str, Any]) -> TokenIds:
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise Rejected("unknown_shape", "input_ids is not a list of whole numbers")
    if not ids:
        raise Rejected("empty", "input_ids is empty")
    if mask is None:
        return TokenIds(ids, [1] * len(ids), has_mask=False)
    if not isinstance(mask, list) or not all(value in (0, 1) and isinstance(value, int) for value in mask):
        raise Rejected("invalid_mask", "loss_mask is not a list of 0 and 1")
    if len(mask) != len(ids):
        raise Rejected("invalid_mask", f"loss_mask has {len(mask)} entries for {len(ids)} ids")
    return TokenIds(ids, [int(value) for value in mask], has_mask=True)


def _no_known_key(row: dict[str, Any]) -> str:
    for key in row:
        if isinstance(key, str) and key.lower() in SHAPES:
            return f"the row has {key}; the key must be {key.lower()}"
    keys = ", ".join(list(row)[:8]) or "none"
    return f"the row has none of {', '.join(SHAPES)}; its keys: {keys[:200]}"


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
