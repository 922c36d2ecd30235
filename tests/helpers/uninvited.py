"""Requests of others to the server of a run, sent in a thread for as long as a block lasts.

They come from the run's own user, who can read the key in the server's record; nobody else gets past the key.
"""

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hidden_states.server.record import READY, Record, read_record

WORDS = {"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}


@dataclass
class Guests:
    """``answers``: how often each kind of request was answered with which status. ``keys``: of every server met."""

    slots: Path
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def server(self) -> Record | None:
        """The server that is ready now, if any."""
        for path in self.slots.glob("*.json"):
            record = read_record(path)
            if record is not None and record.state == READY:
                self.keys.add(record.api_key)
                return record
        return None

    def send(self, record: Record, kind: str, path: str, content: dict[str, Any] | None = None) -> int:
        """Send one request and count the status of its answer; 0 when the server is gone meanwhile."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"content-type": "application/json", "Authorization": f"Bearer {record.api_key}"}
        status = 0
        with contextlib.suppress(OSError, http.client.HTTPException):
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(record.url + path, data, headers), timeout=60
                ) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
        self.answers[kind, status] += 1
        return status

    def go_away(self, record: Record, content: dict[str, Any], seconds: float) -> None:
        """Send a prompt and close the connection before the answer."""
        connection = http.client.HTTPConnection(record.url.removeprefix("http://"), timeout=30)
        headers = {"content-type": "application/json", "Authorization": f"Bearer {record.api_key}"}
        with contextlib.suppress(OSError):
            connection.request("POST", "/generate", json.dumps(content), headers)
            time.sleep(seconds)
            connection.close()
            self.answers["gone away", 0] += 1

    def total(self, kind: str, *statuses: int) -> int:
        """How many requests of this kind got an answer, or one of ``statuses``."""
        return sum(
            count
            for (name, status), count in self.answers.items()
            if name == kind and (status in statuses if statuses else status > 0)
        )


def prompt(rid: str | None, ids: list[int]) -> dict[str, Any]:
    content: dict[str, Any] = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}}
    return content if rid is None else content | {"rid": rid}


@contextmanager
def guests(slots: Path, visit: Callable[[Guests, Record], None], pause: float = 0.2) -> Iterator[Guests]:
    """Inside the block, ``visit`` is called again and again with the server that is ready, ``pause`` seconds apart."""
    found, over = Guests(slots), threading.Event()

    def loop() -> None:
        while not over.wait(pause):
            if (record := found.server()) is not None:
                try:
                    visit(found, record)
                except Exception as error:
                    found.problems.append(repr(error))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(90)
    assert found.problems == []
