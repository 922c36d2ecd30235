"""Notices a server that died or fell silent."""

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hidden_states.extraction.limits import Limits


class Server(Protocol):
    """What the client needs of a leased server; everything but ``max_req_input_len`` may change in ``restart``."""

    url: str
    headers: dict[str, str]
    rid_prefix: str
    dump: Path
    max_req_input_len: int
    """Prompts must be shorter than this many tokens."""

    def alive(self) -> bool: ...
    def restart(self) -> None: ...
    def why_died(self) -> str: ...


class Watch:
    """Between one start of the server and the next: is it there, and when did it last get something done?"""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._server, self._limits = server, limits
        self._in_flight: dict[object, int] = {}
        self.lost = asyncio.Event()
        self.why_lost = ""
        self.last_progress = time.monotonic()

    def moved(self) -> None:
        """Something got done: an answer came, or a file."""
        self.last_progress = time.monotonic()

    @contextmanager
    def request(self, num_tokens: int):
        """A request of this many tokens is in flight inside the block."""
        if not self._in_flight:
            self.moved()
        name = object()
        self._in_flight[name] = num_tokens
        try:
            yield
        finally:
            del self._in_flight[name]

    async def run(self) -> None:
        """Look every heartbeat, until the server is lost: then ``lost`` is set and ``why_lost`` says why."""
        while not self.lost.is_set():
            await asyncio.sleep(self._limits.heartbeat)
            if not await asyncio.to_thread(self._server.alive):
                self.why_lost = self._server.why_died()
                self.lost.set()
            elif self._in_flight:
                silence = time.monotonic() - self.last_progress
                if silence > self._limits.longest_silence(max(self._in_flight.values())):
                    self.why_lost = f"it runs, but answered nothing for {silence:.0f} s"
                    self.lost.set()

    async def lost_within(self, seconds: float) -> bool:
        """Wait this long, or until the server is lost; whether it is."""
        try:
            await asyncio.wait_for(self.lost.wait(), seconds)
        except TimeoutError:
            return False
        return True
