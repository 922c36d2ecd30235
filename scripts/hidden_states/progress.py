"""Progress of long work as log lines: done of total, rate, time left."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta

log = logging.getLogger(__name__)


class Progress:
    """Counts finished units and logs a line at most every ``interval_sec`` seconds.

    ``total_tokens`` and ``total_bytes`` may be 0 where they mean nothing. Time left is the remaining share of the
    tokens (or else of the units) at the rate so far.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str = "samples",
        total_tokens: int = 0,
        interval_sec: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.unit, self.total_tokens = what, total, unit, total_tokens
        self.done = self.tokens = self.bytes = 0
        self._clock, self._interval = clock, interval_sec
        self._start = self._last = clock()

    def add(self, units: int = 1, tokens: int = 0, num_bytes: int = 0) -> None:
        self.done += units
        self.tokens += tokens
        self.bytes += num_bytes
        if self._clock() - self._last >= self._interval:
            self._last = self._clock()
            log.info(self.line())

    @property
    def seconds(self) -> float:
        return max(self._clock() - self._start, 1e-9)

    def line(self) -> str:
        """One line such as ``chunk 0003: 12/64 samples (19 %), 1,234 tokens/s, 0.01 GB/s, 0:01:12 left``."""
        parts = [f"{self.what}: {self.done:,}/{self.total:,} {self.unit}"]
        share = self.tokens / self.total_tokens if self.total_tokens else self.done / self.total if self.total else 1.0
        parts[0] += f" ({share:.0%})"
        if self.tokens:
            parts.append(f"{self.tokens / self.seconds:,.0f} tokens/s")
        else:
            parts.append(f"{self.done / self.seconds:,.0f} {self.unit}/s")
        if self.bytes:
            parts.append(f"{self.bytes / self.seconds / 1e9:.2f} GB/s")
        if 0 < share < 1:
            parts.append(f"{timedelta(seconds=round(self.seconds * (1 - share) / share))} left")
        return ", ".join(parts)

    def finish(self) -> None:
        """Log the last line, with the whole time."""
        log.info("%s, done in %s", self.line(), timedelta(seconds=round(self.seconds)))
