"""A bounded pool of host buffers: rows wait here between the device and the disk."""

import threading
import time
from dataclasses import dataclass, field

import numpy
import torch

from hidden_states.store.state_file import SCALE_BYTES

MIN_BUFFERS = 16
MAX_BUFFER_BYTES = 256 << 20


@dataclass(eq=False)
class Buffer:
    """``host``: storage dtype [rows, row_width]; ``memory``: the same bytes, uint8 [rows, row_bytes]. ``host_scales``
    and ``scales``: float32 [rows], the same memory twice, or None. ``users``: segments that still have to be written
    from it."""

    host: torch.Tensor
    memory: numpy.ndarray
    host_scales: torch.Tensor | None = None
    scales: numpy.ndarray | None = None
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class BufferPool:
    """At most ``limit_bytes`` of host memory in buffers of equal size, each made when it is first needed, pinned for
    a CUDA device. With ``scaled`` each row has a float32 beside it.

    Sizes are powers of two, which is what the allocator of pinned memory rounds up to: the bound is then the real one.
    Raises ValueError when ``limit_bytes`` does not hold two buffers of one row.
    """

    def __init__(
        self, limit_bytes: int, row_width: int, dtype: torch.dtype, pinned: bool, scaled: bool = False
    ) -> None:
        row_bytes = row_width * dtype.itemsize + (SCALE_BYTES if scaled else 0)
        self._buffer_bytes = max(
            min(MAX_BUFFER_BYTES, _power_of_two_below(limit_bytes // MIN_BUFFERS)), _power_of_two_above(row_bytes)
        )
        self.num_buffers = limit_bytes // self._buffer_bytes
        if self.num_buffers < 2:
            raise ValueError(
                f"SGLANG_HS_BUFFER_BYTES is {limit_bytes:,}; rows of {row_bytes:,} bytes need at least "
                f"{2 * self._buffer_bytes:,}"
            )
        self.num_rows = self._buffer_bytes // row_bytes
        self.wait_seconds = 0.0
        self._row_width, self._dtype, self._pinned, self._scaled = row_width, dtype, pinned, scaled
        self._made = 0
        self._free: list[Buffer] = []
        self._condition = threading.Condition()

    @property
    def allocated_bytes(self) -> int:
        return self._made * self._buffer_bytes

    def acquire(self, deadline: float) -> Buffer | None:
        """A free buffer, or None when there is none before ``deadline`` (``time.monotonic`` seconds)."""
        with self._condition:
            if not self._free and self._made < self.num_buffers:
                buffer = self._make()
                self._made += 1
                return buffer
            start = time.monotonic()
            while not self._free and (left := deadline - time.monotonic()) > 0:
                self._condition.wait(left)
            self.wait_seconds += time.monotonic() - start
            # The one freed last: while few are in use, few have their memory touched.
            return self._free.pop() if self._free else None

    def release(self, buffer: Buffer) -> None:
        """One of the buffer's users is done with it; the last one frees it."""
        with buffer.lock:
            buffer.users -= 1
            if buffer.users > 0:
                return
        with self._condition:
            self._free.append(buffer)
            self._condition.notify()

    def _make(self) -> Buffer:
        memory = torch.empty(self._buffer_bytes, dtype=torch.uint8, pin_memory=self._pinned)
        rows = memory[: self.num_rows * self._row_width * self._dtype.itemsize].view(self.num_rows, -1)
        buffer = Buffer(rows.view(self._dtype), rows.numpy())
        if self._scaled:
            # At the end, which is a multiple of their size.
            buffer.host_scales = memory[self._buffer_bytes - self.num_rows * SCALE_BYTES :].view(torch.float32)
            buffer.scales = buffer.host_scales.numpy()
        return buffer


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0


def _power_of_two_above(number: int) -> int:
    return 1 << (number - 1).bit_length()
