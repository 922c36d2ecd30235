"""Drives a server for some seconds and says how many tokens came out, with the product's own client."""

import asyncio
import itertools
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
from hidden_states.extraction.attempt import Task
from hidden_states.extraction.client import open_session, prefill
from hidden_states.extraction.engine import Engine
from hidden_states.extraction.journal import Journal
from hidden_states.extraction.limits import Limits
from hidden_states.layout import Results
from hidden_states.progress import Progress
from hidden_states.server.specification import ServerSpecification
from hidden_states.store.checksums import CheckedFile
from hidden_states.store.state_file import NO_CHECKSUM, StateHeader, sample_key
from hidden_states.store.store import Store
from hidden_states.store.tokens import TokenSample

from capture.server import BenchServer

STEADY = (0.1, 0.9)
"""The part of a run, in shares of its time, from which the rate is taken."""


class Tally:
    """When how many tokens were finished."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._done: list[tuple[float, int]] = []

    def add(self, tokens: int) -> None:
        self._done.append((time.monotonic() - self._start, tokens))

    def figures(self, seconds: float) -> dict[str, float]:
        """``seconds``: how long requests were begun. Rates in tokens per second: of the steady part, and of the whole
        run until its last token."""
        times = numpy.array([when for when, _ in self._done])
        tokens = numpy.array([count for _, count in self._done])
        begin, end = (share * seconds for share in STEADY)
        steady = tokens[(times > begin) & (times <= end)].sum()
        return {
            "seconds": round(seconds, 1),
            "samples": int(times.size),
            "tokens": int(tokens.sum()),
            "tokens_per_second": round(float(steady) / (end - begin), 1),
            "whole_run_tokens_per_second": round(float(tokens.sum() / times.max()), 1),
            "drain_seconds": round(float(times.max()) - seconds, 2),
        }


def drive_plain(
    server: BenchServer, prompts: Iterator[numpy.ndarray], seconds: float, concurrency: int
) -> dict[str, float]:
    """Requests as the product sends them, nothing captured; tokens count when the answer is there."""
    tally, end = Tally(), time.monotonic() + seconds

    async def one(session: Any, numbers: Iterator[int]) -> None:
        while time.monotonic() < end:
            ids = next(prompts)
            await prefill(session, server.url, {}, f"plain-{next(numbers)}", ids)
            tally.add(ids.size)

    async def run() -> None:
        numbers = itertools.count(int(time.monotonic() * 1e6))
        async with open_session() as session:
            await asyncio.gather(*(one(session, numbers) for _ in range(concurrency)))

    asyncio.run(run())
    return tally.figures(seconds)


def drive_capture(
    server: BenchServer,
    spec: ServerSpecification,
    results: Results,
    prompts: Iterator[numpy.ndarray],
    seconds: float,
    concurrency: int,
) -> dict[str, Any]:
    """The product's engine: request, wait for the file, check it in full, publish it. A thread then deletes it, since
    no disk holds them all. Tokens count when they are published."""
    store = _Emptied(results, spec.fingerprint)
    before, started = _stats(server.dump), time.monotonic()

    def tasks() -> Iterator[Task]:
        for number in itertools.count():
            if time.monotonic() - started > seconds:
                return
            ids = next(prompts)
            key = sample_key(ids.astype("<i8").tobytes())
            expected = StateHeader(
                key, spec.fingerprint, spec.layers, spec.final, spec.dtype, ids.size, spec.hidden_size, NO_CHECKSUM
            )
            yield Task(TokenSample(number, key, ids), expected)

    async def run(journal: Journal) -> Engine:
        progress = Progress("benchmark", 1)
        middle = f"0000-{{key}}-{int(started * 1e3) % 10**8}-"
        engine = Engine(server, store, journal, progress, concurrency, middle, Limits())
        await engine.run(tasks())
        return engine

    with Journal(results.journal("0000")) as journal:
        engine = asyncio.run(run(journal))
    store.finish()
    time.sleep(2.5)  # the plug-in writes its figures every two seconds
    after = _stats(server.dump)
    spent = {name: round(after[name] - before.get(name, 0), 3) for name in after}
    return store.tally.figures(seconds) | {
        "failed": len(engine.failures),
        "forwards": spent["forwards"],
        "hook_seconds": spent["hook_seconds"],
        "buffer_wait_seconds": spent["wait_seconds"],
        "bytes_written": spent["bytes"],
        "buffer_bytes": after["buffer_bytes"],
    }


class _Emptied(Store):
    """The store, which forgets each state once it is published."""

    def __init__(self, results: Results, fingerprint: str) -> None:
        super().__init__(results, fingerprint)
        self.tally = Tally()
        self._published: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._deleter = threading.Thread(target=self._delete, daemon=True)
        self._deleter.start()

    def publish(self, file: Path, checked: CheckedFile) -> CheckedFile:
        done = super().publish(file, checked)
        self.tally.add(done.header.num_tokens)
        self._published.put(done.path)
        return done

    def finish(self) -> None:
        self._published.put(None)
        self._deleter.join()

    def _delete(self) -> None:
        while (path := self._published.get()) is not None:
            path.unlink()


def _stats(dump: Path) -> dict[str, float]:
    with suppress(FileNotFoundError):
        return json.loads((dump / "capture_stats.json").read_text())
    return {}
