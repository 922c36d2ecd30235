"""A bounded pool of host buffers: rows wait here between the device and the disk."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy
import torch

MAX_BUFFERS = 16
MAX_ROWS = 8192


@dataclass
class Buffer:
    """``host``: storage dtype [rows, row_width]; ``memory``: the same bytes, uint8 [rows, row_bytes]."""

    host: torch.Tensor
    memory: numpy.ndarray
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class BufferPool:
    """At most ``buffer_bytes`` of host memory, in up to 16 buffers made when first needed, pinned for a CUDA device."""

    def __init__(self, buffer_bytes: int, row_width: int, dtype: torch.dtype, pinned: bool) -> None:
        row_bytes = row_width * dtype.itemsize
        self.num_rows = max(1, min(MAX_ROWS, buffer_bytes // MAX_BUFFERS // row_bytes))
        self.num_buffers = max(1, min(MAX_BUFFERS, buffer_bytes // (self.num_rows * row_bytes)))
        self.wait_seconds = 0.0
        self._shape, self._dtype, self._pinned = (self.num_rows, row_width), dtype, pinned
        self._made = 0
        self._free: deque[Buffer] = deque()
        self._condition = threading.Condition()

    @property
    def allocated_bytes(self) -> int:
        return self._made * self._shape[0] * self._shape[1] * self._dtype.itemsize

    def acquire(self, deadline: float) -> Buffer | None:
        """A free buffer, or None when there is none before ``deadline`` (``time.monotonic`` seconds)."""
        with self._condition:
            if not self._free and self._made < self.num_buffers:
                self._made += 1
                return self._make()
            start = time.monotonic()
            while not self._free:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            self.wait_seconds += time.monotonic() - start
            return self._free.popleft() if self._free else None

    def release(self, buffer: Buffer) -> None:
        """One of the buffer's users is done with it; the last one frees it."""
        with buffer.lock:
            buffer.users -= 1
            if buffer.users:
                return
        with self._condition:
            self._free.append(buffer)
            self._condition.notify()

    def _make(self) -> Buffer:
        host = torch.empty(self._shape, dtype=self._dtype, pin_memory=self._pinned)
        return Buffer(host, host.view(torch.uint8).numpy())
