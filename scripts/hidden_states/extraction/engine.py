"""Drives the samples of a chunk through the server into the store, and answers every fault in its own way.

| fault | answer |
|---|---|
| no connection, HTTP 5xx, a wrong capture | the sample again, a bounded number of times, waiting longer each time |
| HTTP 4xx | the sample fails with the server's words |
| capture buffers full | fewer requests at a time, the sample again |
| server dead or silent | restart; the samples it had in hand one at a time, each alone; one that kills it twice fails |
| disk full | stop; what is published stays |

A phase is the work between two starts of the server: it ends when the samples are used up or the server is lost.
"""

import asyncio
import errno
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from hidden_states.errors import UserError
from hidden_states.extraction import dump
from hidden_states.extraction.client import open_session, prefill
from hidden_states.extraction.faults import BadCapture, DiskFull, Refused, RequestFailed, ServerLost, SinkStalled
from hidden_states.extraction.journal import Journal
from hidden_states.extraction.limiter import Limiter
from hidden_states.extraction.limits import Limits
from hidden_states.progress import Progress
from hidden_states.store.checksums import CheckedFile, StateFileError, check_state_file
from hidden_states.store.state_file import StateHeader
from hidden_states.store.store import Store
from hidden_states.store.tokens import TokenSample

log = logging.getLogger(__name__)

KILLS_SERVER = "kills_server"
FIRST_LOOK, LONGEST_LOOK = 0.002, 0.05
"""Seconds between looks for the file of an answered request: at first, and at most."""


class Server(Protocol):
    """What the engine needs of a leased server; everything but the two calls may change in ``restart``."""

    url: str
    headers: dict[str, str]
    rid_prefix: str
    dump: Path

    def alive(self) -> bool: ...
    def restart(self) -> None: ...
    def why_died(self) -> str: ...


@dataclass
class Task:
    """A sample on its way. ``attempts`` counts requests sent; the others count against a limit each."""

    sample: TokenSample
    expected: StateHeader
    attempts: int = 0
    faults: int = 0
    stalls: int = 0
    deaths_alone: int = 0


class Engine:
    """Runs tasks to their end: afterwards each key is in ``states`` or in ``failures`` (key → reason)."""

    def __init__(
        self,
        server: Server,
        store: Store,
        journal: Journal,
        progress: Progress,
        concurrency: int,
        rid_middle: str,
        limits: Limits,
    ) -> None:
        self.server, self.store, self.journal, self.progress, self.limits = server, store, journal, progress, limits
        self.states: dict[str, CheckedFile] = {}
        self.failures: dict[str, str] = {}
        self.restarts = 0
        self._rid_middle = rid_middle
        self._limiter = Limiter(concurrency)
        self._concurrency = concurrency
        self._again: deque[Task] = deque()
        self._suspects: list[Task] = []
        self._in_flight: dict[str, Task] = {}
        self._deaths_in_a_row = 0
        self._given_back = 0
        self._why_lost = ""
        self._last_progress = time.monotonic()
        self._lost = asyncio.Event()
        self._threads = ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 2), "check")

    async def run(self, tasks: Iterable[Task]) -> None:
        """Run all ``tasks``, which are taken a few at a time.

        Raises UserError when the server does not come up or keeps dying, DiskFull when the disk is full.
        """
        source = self._with_returned(iter(tasks))
        try:
            while not await self._phase(source):
                await self._after_death()
        finally:
            self._threads.shutdown()

    def _with_returned(self, fresh: Iterator[Task]) -> Iterator[Task]:
        """The tasks that a lost server gave back, then new ones."""
        while True:
            task = self._again.popleft() if self._again else next(fresh, None)
            yield task  # None says: no more for now

    async def _after_death(self) -> None:
        """Restart the server and run what it had in hand one at a time, until none of that is left."""
        suspects = deque(self._take_suspects())
        await self._restart()
        while suspects:
            task = suspects.popleft()
            if task.deaths_alone >= self.limits.deaths_alone:
                words = f"the server died {task.deaths_alone} times while it had this sample alone"
                self._fail(task, f"{KILLS_SERVER}: {words}: {self._why_lost}")
            elif not await self._phase(iter([task])):
                suspects.extend(self._take_suspects())  # at the back: others may go well in between
                await self._restart()

    def _take_suspects(self) -> list[Task]:
        suspects, self._suspects = self._suspects, []
        if len(suspects) == 1:
            suspects[0].deaths_alone += 1
        return suspects

    async def _restart(self) -> None:
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= self.limits.deaths_in_a_row:
            raise UserError(
                f"the server was lost {self._deaths_in_a_row} times without finishing a sample in between; the last "
                f"time: {self._why_lost}. Look at its log, then run `snakemake --cores 8 all` again: what was "
                "published stays."
            )
        self.restarts += 1
        log.warning("the server was lost (%s); starting it again", self._why_lost)
        await asyncio.to_thread(self.server.restart)

    async def _phase(self, source: Iterator[Task | None]) -> bool:
        """Run tasks until none is left (True) or the server is lost (False)."""
        self._lost = asyncio.Event()
        self._given_back = 0
        self._moved()
        try:
            async with open_session() as session, asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch())
                finished = await self._feed(source, functools.partial(self._one, session), group)
                watcher.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return finished and not self._given_back

    async def _feed(
        self, source: Iterator[Task | None], start: Callable[[Task], Any], group: asyncio.TaskGroup
    ) -> bool:
        """Start tasks as there is room, and wait for all of them. False when the server was lost before the end."""
        # Twice as many samples as requests: files are written, checked and published while the server goes on.
        room = asyncio.Semaphore(2 * self._concurrency)
        running: set[asyncio.Task] = set()
        finished = False
        while not finished:
            await room.acquire()
            if self._lost.is_set():
                break
            task = next(source, None)
            if task is None:
                finished = True
                break
            job = group.create_task(start(task))
            running.add(job)
            job.add_done_callback(running.discard)
            job.add_done_callback(lambda _: room.release())
        while running:
            await asyncio.wait(running)
        return finished

    async def _watch(self) -> None:
        """Notice a server that died or fell silent."""
        while not self._lost.is_set():
            await asyncio.sleep(self.limits.heartbeat)
            if not await asyncio.to_thread(self.server.alive):
                self._why_lost = self.server.why_died()
                self._lost.set()
            elif self._in_flight:
                longest = max(task.sample.num_tokens for task in self._in_flight.values())
                silence = time.monotonic() - self._last_progress
                if silence > self.limits.longest_silence(longest):
                    self._why_lost = f"it runs, but answered nothing for {silence:.0f} s"
                    self._lost.set()

    async def _one(self, session: aiohttp.ClientSession, task: Task) -> None:
        """One task to its end, or back to where the next phase finds it."""
        try:
            while True:
                sent_at = time.monotonic()
                try:
                    return await self._attempt(session, task)
                except Refused as error:
                    return self._fail(task, f"refused: {error}")
                except SinkStalled as error:
                    task.stalls += 1
                    wait, last = self.limits.wait_before(task.stalls), task.stalls >= self.limits.stalls
                    reason, in_flight = f"sink_stalled: {error}", False
                    if self._limiter.slow_down(sent_at):
                        log.warning(
                            "the disk is slower than the server: %d requests at a time now", self._limiter.width
                        )
                except (RequestFailed, BadCapture) as error:
                    task.faults += 1
                    wait, last = self.limits.wait_before(task.faults), task.faults >= self.limits.attempts
                    reason, in_flight = str(error), isinstance(error, RequestFailed)
                    log.warning("sample %d (key %s): %s", task.sample.sample_id, task.sample.key, reason)
                if await self._lost_within(wait):
                    raise ServerLost(in_flight)
                if last:
                    return self._fail(task, reason)
        except ServerLost as lost:
            task.faults = 0
            self._given_back += 1
            (self._suspects if lost.in_flight else self._again).append(task)

    async def _attempt(self, session: aiohttp.ClientSession, task: Task) -> None:
        async with self._limiter.slot():
            if self._lost.is_set():
                raise ServerLost(in_flight=False)
            task.attempts += 1
            rid = f"{self.server.rid_prefix}{self._rid_middle.format(key=task.sample.key)}{task.attempts}"
            seconds = await self._ask(session, task, rid)
        file = await self._file_of(task, rid)
        state = await self._in_thread(self._check_and_publish, file, task)
        key, header = task.sample.key, state.header
        self.journal.sample(key, header.num_tokens, task.attempts, seconds, header.file_bytes, state.published)
        self.states[key] = state
        self._deaths_in_a_row = 0
        self._limiter.speed_up()
        self.progress.add(1, header.num_tokens, header.file_bytes)

    async def _ask(self, session: aiohttp.ClientSession, task: Task, rid: str) -> float:
        """Send the request; seconds until the answer. A lost server ends the wait at once."""
        if not self._in_flight:
            self._moved()
        self._in_flight[rid] = task
        request = asyncio.create_task(
            prefill(session, self.server.url, self.server.headers, rid, task.sample.token_ids)
        )
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({request, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ServerLost(in_flight=True)
            self._moved()
            return request.result()
        finally:
            del self._in_flight[rid]
            request.cancel()
            lost.cancel()
            await asyncio.gather(request, lost, return_exceptions=True)

    async def _file_of(self, task: Task, rid: str) -> Path:
        """Wait for what the plug-in writes about an answered request."""
        answered, pause = time.monotonic(), FIRST_LOOK
        while True:
            was_lost = self._lost.is_set()  # before looking: a file written just before the end still counts
            if file := dump.look(self.server.dump, rid):
                self._moved()
                return file
            if was_lost:
                raise ServerLost(in_flight=False)
            waited = time.monotonic() - max(answered, self._last_progress)
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

    def _fail(self, task: Task, reason: str) -> None:
        log.error("sample %d (key %s) failed: %s", task.sample.sample_id, task.sample.key, reason)
        self.failures[task.sample.key] = reason
        self.journal.sample(task.sample.key, task.sample.num_tokens, task.attempts, reason=reason)
        self.progress.add(1, task.sample.num_tokens)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _lost_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._lost.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _moved(self) -> None:
        self._last_progress = time.monotonic()
