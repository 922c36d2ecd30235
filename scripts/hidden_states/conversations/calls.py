"""Tool calls in the forms that chat templates take."""

import json
from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]


def variants(messages: Messages) -> list[Messages]:
    """The forms to try, in this order: arguments as an object or as a text, content null or empty, short ids."""
    if not any(message.get("tool_calls") for message in messages):
        return [messages]
    as_text = [_arguments_as_text(message) for message in messages]
    forms = [messages, as_text, [never_null(message) for message in messages], [never_null(m) for m in as_text]]
    return [*forms, _with_short_ids(messages)]


def with_named_ids(messages: Messages) -> Messages:
    """The messages with ids such as ``functions.look:0``, counted over the conversation, which is how Kimi's models
    name what they call. Left alone where every id holds the name of its call already."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    if all(call["function"]["name"] in call["id"] for call in calls):
        return messages
    return _with_ids(messages, lambda number, call: f"functions.{call['function']['name']}:{number}")


def never_null(message: dict[str, Any]) -> dict[str, Any]:
    return message if message["content"] is not None else {**message, "content": ""}


def _with_short_ids(messages: Messages) -> Messages:
    """Ids in the one form that Mistral's templates take: nine letters and digits."""
    return _with_ids(messages, lambda number, _: f"call{number:05}")


def _with_ids(messages: Messages, identity: Callable[[int, dict[str, Any]], str]) -> Messages:
    """New ids for calls, and for their results: by the id they name, or else in the order of the calls."""
    renamed: Messages = []
    count = 0
    waiting: list[tuple[str, str]] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": identity(count + i, call)} for i, call in enumerate(message["tool_calls"])]
            waiting = [(old["id"], new["id"]) for old, new in zip(message["tool_calls"], calls, strict=True)]
            count += len(calls)
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool" and waiting:
            named = [pair for pair in waiting if pair[0] == message.get("tool_call_id")]
            answered = (named or waiting)[0]
            message = {**message, "tool_call_id": answered[1]}
            waiting = [pair for pair in waiting if pair is not answered] or waiting
        renamed.append(message)
    return renamed


def _arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}
