"""Which shape a row has, told per row, and the row in one common form.

| shape | recognised by | turns |
|---|---|---|
| token ids | ``input_ids``, optional ``loss_mask`` | – |
| ShareGPT | ``conversations`` | ``from`` and ``value`` (or ``role`` and ``content``) |
| OpenAI | ``messages`` | ``role`` and ``content`` (or ``from`` and ``value``) |
| Alpaca | ``instruction`` and ``output``, optional ``input``, ``history`` | those of ``history``, question, answer |
| prompt and completion | ``prompt`` and ``completion`` | a text each, or lists of turns |

A row with ``input_ids`` is taken as it is, whatever else it holds. Without ``loss_mask`` every token has loss: that
is what ids alone can say, and ``summary.json`` counts such rows. Turns go before the two last shapes, whose names some
data sets have beside their turns. A key whose value is null counts as missing, and capital letters in keys do not
matter. ``system`` and ``tools`` may go with every shape but ids.
"""

from dataclasses import dataclass, field
from typing import Any

from hidden_states.conversations.messages import read_message, read_tools, tidy
from hidden_states.conversations.reasons import Rejected

SHAPES = (
    ("input_ids",),
    ("conversations",),
    ("messages",),
    ("instruction", "output"),
    ("prompt", "completion"),
)
"""The keys that make each shape."""

MEDIA_KEYS = ("image", "images", "video", "videos", "audio", "audios")
ROW_KEYS = frozenset(
    (*(key for shape in SHAPES for key in shape), "loss_mask", "input", "history", "system", "tools", *MEDIA_KEYS)
)
"""Every key of a row that is read."""


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
    row = tidy(row, ROW_KEYS, "the row")
    if "input_ids" in row:
        return _token_ids(row)
    turns = _turns(row)
    for name in MEDIA_KEYS:
        if row.get(name):
            raise Rejected("multimodal", f"the row has {name}")
    messages = [read_message(turn, index) for index, turn in enumerate(turns)]
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    conversation = Conversation(messages, read_tools(row.get("tools")))
    if not conversation.assistant_turns:
        raise Rejected("no_assistant_turn", f"the roles are {', '.join(message['role'] for message in messages)[:200]}")
    return conversation


def has_ids(row: dict[str, Any]) -> bool:
    """Whether ``read_shape`` takes the ids of the row as they are."""
    return any(value is not None and key.lower() == "input_ids" for key, value in row.items())


def _turns(row: dict[str, Any]) -> list[Any]:
    """The turns of the row, whatever its shape; at least one."""
    present = [shape for shape in SHAPES if all(key in row for key in shape)]
    if len(present) > 1 and len(present[0]) == 1:
        present = [shape for shape in present if len(shape) == 1]
    if not present:
        raise Rejected("unknown_shape", _no_known_keys(row))
    if len(present) > 1:
        names = " and ".join(shape[0] for shape in present)
        raise Rejected("unknown_shape", f"the row has both {names}; keep one of them")
    (shape,) = present
    if shape == ("instruction", "output"):
        return _alpaca_turns(row)
    if shape == ("prompt", "completion"):
        return [*_side(row, "prompt", "user"), *_side(row, "completion", "assistant")]
    return _list_of_turns(row, shape[0])


def _list_of_turns(row: dict[str, Any], name: str) -> list[Any]:
    turns = row[name]
    if not isinstance(turns, list):
        raise Rejected("unknown_shape", f"{name} is {_kind(turns)}, not a list")
    if not turns:
        raise Rejected("empty", f"{name} has no turns")
    return turns


def _side(row: dict[str, Any], name: str, role: str) -> list[Any]:
    """The turns of one side of a prompt and its completion."""
    if isinstance(row[name], list):
        return _list_of_turns(row, name)
    return [{"role": role, "content": _words(row[name], name)}]


def _alpaca_turns(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Instruction and input are one question, with a line end between them, as this shape's trainers have it."""
    history = row.get("history", [])
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise Rejected("unknown_shape", "history is not a list of pairs, question and answer")
    parts = [_words(row[name], name, may_be_empty=True) for name in ("instruction", "input") if name in row]
    question = "\n".join(part for part in parts if part.strip())
    pairs = [*history, [_words(question, "instruction"), row["output"]]]
    return [
        {"role": role, "content": _words(text, "an answer" if role == "assistant" else "a question")}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _words(text: Any, name: str, may_be_empty: bool = False) -> str:
    if type(text) is int:
        return str(text)
    if text is not None and not isinstance(text, str):
        raise Rejected("unknown_shape", f"{name} is {_kind(text)}, not a text")
    if not may_be_empty and not (text or "").strip():
        raise Rejected("empty", f"{name} is empty")
    return text or ""


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


def _no_known_keys(row: dict[str, Any]) -> str:
    for shape in SHAPES:
        there = [key for key in shape if key in row]
        if there:
            missing = ", ".join(key for key in shape if key not in row)
            return f"the row has {there[0]}, but no {missing}; its keys: {', '.join(list(row)[:8])[:200]}"
    wanted = ", ".join(" with ".join(shape) for shape in SHAPES)
    return f"the row has none of {wanted}; its keys: {', '.join(list(row)[:8])[:200] or 'none'}"


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
