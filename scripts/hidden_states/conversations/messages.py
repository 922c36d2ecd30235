"""One turn in the form that chat templates read, whatever the names it came with."""

import json
from collections.abc import Collection
from typing import Any

from hidden_states.conversations.reasons import Rejected

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "ipython": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""Role names of ShareGPT and OpenAI rows, small letters, words joined by _ → role in a chat template. The last two hold
a call as their content."""

CALL_ROLES = ("function_call", "tool_call")
KEPT_KEYS = ("name", "tool_call_id")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
TURN_KEYS = frozenset(("role", "content", "from", "value", "tool_calls", "function_call", *REASONING_KEYS))


def tidy(record: dict[str, Any], known: Collection[str], where: str) -> dict[str, Any]:
    """``record`` without the keys whose value is null (what tables have where a key is missing), and with the keys of
    ``known`` in small letters. Raises Rejected for a key that is there in two spellings."""
    tidied: dict[str, Any] = {}
    for key, value in record.items():
        if value is None:
            continue
        if key not in known and key.lower() in known:
            key = key.lower()
        if key in tidied:
            raise Rejected("unknown_shape", f"{where} has {key} twice, in different spellings")
        tidied[key] = value
    return tidied


def read_message(turn: Any, index: int) -> dict[str, Any]:
    """The turn with role, content (a text, or None beside tool calls), and where they exist tool_calls (arguments
    as objects), reasoning_content, name, tool_call_id. Raises Rejected."""
    where = f"turn {index}"
    if not isinstance(turn, dict):
        raise Rejected("unknown_shape", f"{where} is not an object")
    turn = tidy(turn, TURN_KEYS, where)
    role_key, content_key = ("role", "content") if "role" in turn else ("from", "value")
    name = turn.get(role_key)
    if name is None:
        keys = ", ".join(turn)[:100]
        raise Rejected("unknown_shape", f"{where} has neither role nor from; its keys: {keys}")
    spelled = name.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(name, str) else None
    role = ROLES.get(spelled)
    if role is None:
        raise Rejected("unknown_shape", f"{where}: {role_key} is {str(name)[:60]!r}, an unknown role")
    content = _text(turn.get(content_key), f"{where}: {content_key}")
    message: dict[str, Any] = {"role": role, "content": content}
    if role_key == "from" and spelled in CALL_ROLES:
        message |= {"content": None, "tool_calls": _calls(_parse(content, where), where)}
    elif role == "assistant" and (calls := turn.get("tool_calls") or turn.get("function_call")):
        message["tool_calls"] = _calls(calls, where)
    for key in KEPT_KEYS:
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    for key in REASONING_KEYS:
        if role == "assistant" and turn.get(key):
            message["reasoning_content"] = _text(turn[key], f"{where}: {key}")
            break
    _refuse_silence(message, where)
    return message


def read_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tools that the row offers, in OpenAI's form; None where it offers none. Raises Rejected."""
    if isinstance(tools, str):
        tools = _parse(tools, "tools") if tools.strip() else None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Rejected("invalid_tool_call", "tools is not a list of objects")
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def texts(message: dict[str, Any]) -> list[str]:
    """Every text of a message that its template may render, arguments of calls included."""
    found = [value for value in message.values() if isinstance(value, str)]
    for call in message.get("tool_calls", ()):
        found.append(json.dumps(call, ensure_ascii=False))
    return found


def _refuse_silence(message: dict[str, Any], where: str) -> None:
    """A turn without content is a hole in the data, and an assistant's would teach to say nothing."""
    content, is_answer = message["content"], message["role"] == "assistant"
    if message.get("tool_calls") or message.get("reasoning_content"):
        return
    if content is None or (is_answer and not content.strip()):
        raise Rejected("empty", f"{where} ({message['role']}) has no content")


def _text(content: Any, where: str) -> str | None:
    """A text, a whole number as its digits, or the texts of a list of parts joined as they are. Raises Rejected for
    anything else: how a fraction, a truth value or an object was written cannot be told any more."""
    if content is None or isinstance(content, str):
        return content
    if type(content) is int:
        return str(content)
    if not isinstance(content, list):
        raise Rejected("unknown_shape", f"{where} is {str(content)[:60]!r}, not a text")
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type") in (None, "text"):
            parts.append(part["text"])
        elif isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text":
            raise Rejected("multimodal", f"{where} has a part of type {part['type'][:60]!r}")
        else:
            raise Rejected("unknown_shape", f"{where} has a part that is no text")
    return "".join(parts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    calls = calls if isinstance(calls, list) else [calls]
    return [_call(call, f"{where}, call {number}", number) for number, call in enumerate(calls)]


def _call(call: Any, where: str, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise Rejected("invalid_tool_call", f"{where} has no function with a name")
    arguments = function.get("arguments", function.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parse(arguments, f"{where}: arguments") if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise Rejected("invalid_tool_call", f"{where}: arguments are not an object")
    identity = call.get("id")
    return {
        "id": identity if isinstance(identity, str) else f"call_{number}",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _parse(text: str | None, where: str) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise Rejected("invalid_tool_call", f"{where} is not JSON ({error})") from None
