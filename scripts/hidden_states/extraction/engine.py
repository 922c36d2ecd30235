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
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from hidden_states.errors import UserError
from hidden_states.extraction.attempt import Attempts, Task
from hidden_states.extraction.client import open_session
from hidden_states.extraction.faults import BadCapture, Refused, RequestFailed, ServerLost, SinkStalled
from hidden_states.extraction.journal import Journal
from hidden_states.extraction.limiter import Limiter
from hidden_states.extraction.limits import Limits
from hidden_states.extraction.watch import Server, Watch
from hidden_states.progress import Progress
from hidden_states.store.checksums import CheckedFile
from hidden_states.store.disk_plan import DUMPED_PER_REQUEST
from hidden_states.store.store import Store

log = logging.getLogger(__name__)

KILLS_SERVER = "kills_server"


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
        self.states: dict[str, CheckedFile] = {}
        self.failures: dict[str, str] = {}
        self.restarts = 0
        self._server, self._journal, self._progress, self._limits = server, journal, progress, limits
        self._concurrency = concurrency
        self._limiter = Limiter(concurrency)
        self._threads = ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 2), "check")
        self._attempts = Attempts(server, store, limits, self._limiter, rid_middle, self._threads)
        self._again: deque[Task] = deque()
        self._suspects: list[Task] = []
        self._given_back = 0
        self._deaths_in_a_row = 0
        self._why_lost = ""

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

    def _with_returned(self, fresh: Iterator[Task]) -> Iterator[Task | None]:
        """The tasks that a lost server gave back, then new ones; None when there is none for now."""
        while True:
            yield self._again.popleft() if self._again else next(fresh, None)

    async def _after_death(self) -> None:
        """Restart the server and run what it had in hand one at a time, until none of that is left."""
        suspects = deque(self._take_suspects())
        await self._restart()
        while suspects:
            task = suspects.popleft()
            if task.deaths_alone >= self._limits.deaths_alone:
                words = f"the server died {task.deaths_alone} times while it had this sample alone"
                self._fail(task, f"{KILLS_SERVER}: {words}: {self._why_lost}")
            elif not await self._phase(iter([task])):
                suspects.extend(self._take_suspects())  # at the back: others may go well in between
                await self._restart()

    def _take_suspects(self) -> list[Task]:
        """The tasks in flight when the server was lost; a single one is known to have been alone."""
        suspects, self._suspects = self._suspects, []
        if len(suspects) == 1:
            suspects[0].deaths_alone += 1
        return suspects

    async def _restart(self) -> None:
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= self._limits.deaths_in_a_row:
            raise UserError(
                f"the server was lost {self._deaths_in_a_row} times without finishing a sample in between; the last "
                f"time: {self._why_lost}. Look at its log, then run `snakemake --cores 8 all` again: what was "
                "published stays."
            )
        self.restarts += 1
        log.warning("the server was lost (%s); starting it again", self._why_lost)
        await asyncio.to_thread(self._server.restart)

    async def _phase(self, source: Iterator[Task | None]) -> bool:
        """Run tasks until none is left (True) or the server is lost (False)."""
        watch = Watch(self._server, self._limits)
        self._given_back = 0
        try:
            async with open_session() as session, asyncio.TaskGroup() as group:
                watching = group.create_task(watch.run())
                finished = await self._feed(source, watch, functools.partial(self._one, session, watch), group)
                watching.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._why_lost = watch.why_lost or self._why_lost
        return finished and not self._given_back

    async def _feed(
        self,
        source: Iterator[Task | None],
        watch: Watch,
        start: Callable[[Task], Coroutine[None, None, None]],
        group: asyncio.TaskGroup,
    ) -> bool:
        """Start tasks as there is room, and wait for all of them. False when the server was lost before the end."""
        room = asyncio.Semaphore(DUMPED_PER_REQUEST * self._concurrency)
        running: set[asyncio.Task] = set()
        task: Task | None = None
        while not watch.lost.is_set() and (task := next(source, None)):
            job = group.create_task(start(task))
            running.add(job)
            job.add_done_callback(running.discard)
            job.add_done_callback(lambda _: room.release())
            await room.acquire()
        while running:
            await asyncio.wait(running)
        return task is None

    async def _one(self, session: aiohttp.ClientSession, watch: Watch, task: Task) -> None:
        """One task to its end, or back to where the next phase finds it."""
        try:
            await self._try_repeatedly(session, watch, task)
        except ServerLost as lost:
            task.faults = 0
            self._given_back += 1
            (self._suspects if lost.in_flight else self._again).append(task)

    async def _try_repeatedly(self, session: aiohttp.ClientSession, watch: Watch, task: Task) -> None:
        while True:
            sent_at = time.monotonic()
            try:
                return self._succeed(task, *await self._attempts.make(session, watch, task))
            except Refused as error:
                return self._fail(task, f"refused: {error}")
            except SinkStalled as error:
                task.stalls += 1
                wait, last = self._limits.wait_before(task.stalls), task.stalls >= self._limits.stalls
                reason, in_flight = f"sink_stalled: {error}", False
                if self._limiter.slow_down(sent_at):
                    log.warning("the disk is slower than the server: %d requests at a time now", self._limiter.width)
            except (RequestFailed, BadCapture) as error:
                task.faults += 1
                wait, last = self._limits.wait_before(task.faults), task.faults >= self._limits.attempts
                reason, in_flight = str(error), isinstance(error, RequestFailed)
                log.warning("sample %d (key %s): %s", task.sample.sample_id, task.sample.key, reason)
            if await watch.lost_within(wait):
                raise ServerLost(in_flight)
            if last:
                return self._fail(task, reason)

    def _succeed(self, task: Task, state: CheckedFile, seconds: float) -> None:
        key, header = task.sample.key, state.header
        self._journal.sample(key, header.num_tokens, task.attempts, seconds, header.file_bytes, state.published)
        self.states[key] = state
        self._deaths_in_a_row = 0
        self._limiter.speed_up()
        self._progress.add(1, header.num_tokens, header.file_bytes)

    def _fail(self, task: Task, reason: str) -> None:
        log.error("sample %d (key %s) failed: %s", task.sample.sample_id, task.sample.key, reason)
        self.failures[task.sample.key] = reason
        self._journal.sample(task.sample.key, task.sample.num_tokens, task.attempts, reason=reason)
        self._progress.add(1, task.sample.num_tokens)
