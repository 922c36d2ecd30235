"""The small files beside the states: why a request failed, and figures of the capture.

One thread writes them, so that a disk which hangs or is full holds up neither the scheduler nor the writers.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hidden_states.capture.small_file import write_small_file

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 2.0
"""Between two writings of the figures, and between two attempts at a report for which the disk had no room."""


@dataclass(frozen=True)
class Failure:
    """Why ``rid`` has no state file. ``reason`` is a code: ``rows_missing``, ``not_captured``, ``capture_failed``,
    ``sink_stalled``, ``disk_full``, ``write_failed``."""

    rid: str
    reason: str
    detail: str


class Reports:
    """Writes ``<rid>.error.json`` for each failure and keeps ``capture_stats.json`` up to date."""

    def __init__(self, dump: Path) -> None:
        self._dump = dump
        self._failures: queue.SimpleQueue[Failure] = queue.SimpleQueue()

    def start(self, stats: Callable[[], dict[str, Any]]) -> None:
        """Begin to write; ``stats`` gives the figures, and is called in the thread that writes."""
        threading.Thread(target=self._loop, args=(stats,), name="hs-reports", daemon=True).start()

    def failure(self, rid: str, reason: str, detail: str) -> None:
        """Report a failed request; returns at once."""
        log.error("capture of %s failed: %s: %s", rid, reason, detail)
        self._failures.put(Failure(rid, reason, detail))

    def _loop(self, stats: Callable[[], dict[str, Any]]) -> None:
        pending: list[Failure] = []
        written: dict[str, Any] = {}
        while True:
            with contextlib.suppress(queue.Empty):
                pending.append(self._failures.get(timeout=SECONDS_BETWEEN))
            pending = [failure for failure in pending if not self._write(f"{failure.rid}.error.json", asdict(failure))]
            figures = stats()
            if figures != written and self._failures.empty() and self._write("capture_stats.json", figures):
                written = figures

    def _write(self, name: str, content: dict[str, Any]) -> bool:
        try:
            write_small_file(self._dump / name, content)
        except OSError as error:
            log.warning("%s could not be written: %s", name, error)
            return False
        return True
