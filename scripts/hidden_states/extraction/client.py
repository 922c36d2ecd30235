"""One request to the server: run a prompt through the model, generate nothing."""

import json
import time

import aiohttp
import numpy

from hidden_states.extraction.faults import Refused, RequestFailed

WORTH_RETRYING = {408, 425, 429}
WORDS = 500
"""Characters of the server's own words that are kept."""


def open_session() -> aiohttp.ClientSession:
    """A session without time-outs (a stalled server is noticed by silence, not by one slow answer) and without
    kept-alive connections (the server closes idle ones, and that must not look like a failure)."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
    )


async def prefill(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str], rid: str, token_ids: numpy.ndarray
) -> float:
    """Send ``token_ids``, int64 [num_tokens], under the name ``rid``; return the seconds until the answer.

    Raises Refused (4xx) or RequestFailed (no connection, 5xx, aborted).
    """
    body = {"input_ids": token_ids.tolist(), "rid": rid, "sampling_params": {"max_new_tokens": 0}}
    start = time.monotonic()
    try:
        async with session.post(f"{url}/generate", json=body, headers=headers) as answer:
            text = await answer.text(errors="replace")
            status = answer.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise RequestFailed(f"connection: {error or type(error).__name__}") from None
    if status >= 500 or status in WORTH_RETRYING:
        raise RequestFailed(f"HTTP {status}: {_words(text)}")
    if status >= 400:
        raise Refused(f"HTTP {status}: {_words(text)}")
    if aborted := _abort_message(text):
        raise RequestFailed(f"aborted: {aborted}")
    return time.monotonic() - start


def _words(text: str) -> str:
    """The message inside an error answer, or the answer itself, on one line."""
    try:
        content = json.loads(text)
        content = content.get("error", content)
        text = content if isinstance(content, str) else content["message"]
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return " ".join(str(text).split())[:WORDS] or "no words"


def _abort_message(text: str) -> str | None:
    try:
        finish = json.loads(text)["meta_info"]["finish_reason"]
        return (finish.get("message") or "no words") if finish["type"] == "abort" else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
