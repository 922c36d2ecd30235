"""One attempt at one sample: ask the server, wait for the plug-in's file, check it, publish it."""

import asyncio
import errno
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from hidden_states.extraction import dump
from hidden_states.extraction.client import prefill
from hidden_states.extraction.faults import BadCapture, DiskFull, ServerLost
from hidden_states.extraction.limiter import Limiter
from hidden_states.extraction.limits import Limits
from hidden_states.extraction.watch import Server, Watch
from hidden_states.files import FULL_BYTES, free_bytes
from hidden_states.store.checksums import CheckedFile, StateFileError, check_state_file
from hidden_states.store.state_file import StateHeader
from hidden_states.store.store import Store
from hidden_states.store.tokens import TokenSample

FIRST_LOOK, LONGEST_LOOK = 0.002, 0.05
"""Seconds between looks for the file of an answered request: at first, and at most."""
NO_ROOM_SECONDS = 5.0
"""After so long without a file, a full disk is taken for the cause: the plug-in has no room to say so."""


@dataclass
class Task:
    """A sample on its way. ``attempts`` counts requests sent; the others count against a limit each."""

    sample: TokenSample
    expected: StateHeader
    attempts: int = 0
    faults: int = 0
    stalls: int = 0
    deaths_alone: int = 0


@dataclass
class Attempts:
    """Makes attempts at one server, which may be restarted in between.

    ``rid_middle`` stands between the server's prefix and the attempt's number in every rid, with ``{key}`` in it.
    ``threads`` check and publish files.
    """

    server: Server
    store: Store
    limits: Limits
    limiter: Limiter
    rid_middle: str
    threads: Executor

    async def make(self, session: aiohttp.ClientSession, watch: Watch, task: Task) -> tuple[CheckedFile, float]:
        """The published state and the seconds of its request; raises one of ``faults`` otherwise."""
        async with self.limiter.slot():
            if watch.lost.is_set():
                raise ServerLost(in_flight=False)
            task.attempts += 1
            rid = f"{self.server.rid_prefix}{self.rid_middle.format(key=task.sample.key)}{task.attempts}"
            with watch.request(task.sample.num_tokens):
                seconds = await self._ask(session, watch, task, rid)
        file = await self._file_of(watch, task, rid)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._check_and_publish, file, task), seconds

    async def _ask(self, session: aiohttp.ClientSession, watch: Watch, task: Task, rid: str) -> float:
        """Send the request; seconds until the answer. A lost server ends the wait at once."""
        request = asyncio.create_task(
            prefill(session, self.server.url, self.server.headers, rid, task.sample.token_ids)
        )
        lost = asyncio.create_task(watch.lost.wait())
        try:
            await asyncio.wait({request, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ServerLost(in_flight=True)
            watch.moved()
            return request.result()
        finally:
            request.cancel()
            lost.cancel()
            await asyncio.gather(request, lost, return_exceptions=True)

    async def _file_of(self, watch: Watch, task: Task, rid: str) -> Path:
        """Wait for what the plug-in writes about an answered request."""
        answered, pause = time.monotonic(), FIRST_LOOK
        while True:
            was_lost = watch.lost.is_set()  # before looking: a file written just before the end still counts
            if file := dump.look(self.server.dump, rid):
                watch.moved()
                return dump.claim(file)
            if was_lost:
                raise ServerLost(in_flight=False)
            waited = time.monotonic() - max(answered, watch.last_progress)
            if waited > NO_ROOM_SECONDS and free_bytes(self.server.dump) < FULL_BYTES:
                raise DiskFull(f"the server answered, but {self.server.dump} has no room for what it captured")
            if waited > self.limits.longest_silence(task.sample.num_tokens):
                raise BadCapture("no_capture", f"the server answered, but wrote no file within {waited:.0f} s")
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, LONGEST_LOOK)

    def _check_and_publish(self, file: Path, task: Task) -> CheckedFile:
        try:
            checked = check_state_file(file, task.expected, task.sample.token_ids)
            return self.store.publish(file, checked)
        except StateFileError as error:
            file.unlink(missing_ok=True)
            raise BadCapture(error.reason, error.detail) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(str(error)) from None
            raise
