"""Threads for reading files: hashing and looking at values leave the interpreter free, so threads are enough."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 64


def num_threads() -> int:
    """One for each processor that this process may use, and some that wait for the disk."""
    return min(MAX_THREADS, len(os.sched_getaffinity(0)) + 4)


def parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with the result of ``function``, in order; few items are taken ahead, however many there are.

    When ``items`` raises, the results of those before it come first.
    """
    threads = num_threads()
    pending: deque[tuple[Item, Future[Result]]] = deque()
    failure: Exception | None = None
    iterator = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                pending.append((item, pool.submit(function, item)))
                if len(pending) > 4 * threads:
                    yield _finished(pending)
            while pending:
                yield _finished(pending)
        finally:
            for _, future in pending:
                future.cancel()
    if failure is not None:
        raise failure


def _finished(pending: "deque[tuple[Item, Future[Result]]]") -> tuple[Item, Result]:
    item, future = pending.popleft()
    return item, future.result()
