"""From the device to the dump directory without stopping the scheduler.

Rows of a forward are copied to a host buffer, on a CUDA device by a stream of its own; writer threads take them from
there. Each request belongs to one writer, so its rows are written, and hashed, in order.
"""

import errno
import itertools
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from hidden_states.capture.buffers import Buffer, BufferPool
from hidden_states.capture.reports import Reports
from hidden_states.capture.request import Request, Segment
from hidden_states.capture.settings import CaptureSettings
from hidden_states.capture.state_writer import StateFileWriter

log = logging.getLogger(__name__)

NUM_WRITERS = 16
"""More than a disk needs to be kept busy, as each waits for its own fsync."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class _Rows:
    """Rows ``begin`` to ``end`` of ``buffer``, there once ``copied`` (a CUDA event, or None) has happened."""

    request: Request
    buffer: Buffer
    begin: int
    end: int
    copied: Any


@dataclass(frozen=True)
class _Drop:
    request: Request


class Sink:
    """Takes the rows of forwards, in order, from one thread."""

    def __init__(
        self, settings: CaptureSettings, hidden_size: int, device: torch.device, reports: Reports, dtype: torch.dtype
    ) -> None:
        self._settings, self._hidden_size, self._reports = settings, hidden_size, reports
        on_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_cuda else None
        self.pool = BufferPool(
            settings.buffer_bytes,
            settings.num_slots * hidden_size,
            dtype,
            pinned=on_cuda,
            scaled=dtype is torch.float8_e4m3fn,
        )
        self.files_written = self.bytes_written = 0
        self._generations = itertools.count()
        self._lock = threading.Lock()
        self._inboxes: list[queue.SimpleQueue[_Rows | _Drop]] = [queue.SimpleQueue() for _ in range(NUM_WRITERS)]
        for index, inbox in enumerate(self._inboxes):
            threading.Thread(target=self._write_loop, args=(inbox,), name=f"hs-writer-{index}", daemon=True).start()

    def open(self, rid: str, token_ids: numpy.ndarray) -> Request:
        """A new request, int64 ``token_ids`` [num_tokens]; nothing is written before its first rows."""
        generation = next(self._generations)
        return Request(rid, token_ids, generation, writer=generation % NUM_WRITERS)

    def take(self, rows: torch.Tensor, scales: torch.Tensor | None, segments: list[Segment]) -> None:
        """``rows``: storage dtype [num_rows, num_slots * hidden_size] on the device, not written to afterwards;
        ``scales``: float32 [num_rows] with float8.

        Waits for free buffers, ``wait_seconds`` at most for the whole call; requests whose rows found none fail
        with ``sink_stalled``.
        """
        deadline = time.monotonic() + self._settings.wait_seconds
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record()
        first, last = segments[0].begin, segments[-1].end
        for begin in range(first, last, self.pool.num_rows):
            end = min(begin + self.pool.num_rows, last)
            parts = [
                Segment(s.request, max(s.begin, begin), min(s.end, end))
                for s in segments
                if s.begin < end and s.end > begin and not s.request.failed
            ]
            if not parts:
                continue
            buffer = self.pool.acquire(deadline)
            if buffer is None:
                for part in parts:
                    self._stalled(part.request)
                continue
            self._send(rows, scales, begin, end, parts, buffer, ready)

    def fail(self, request: Request, reason: str, detail: str) -> None:
        """Report a request as failed, once, and forget its rows."""
        with self._lock:
            if request.failed:
                return
            request.failed = True
        self.drop(request)
        self._reports.failure(request.rid, reason, detail)

    def drop(self, request: Request) -> None:
        """Remove what was written of a request that does not go on."""
        self._inboxes[request.writer].put(_Drop(request))

    def _stalled(self, request: Request) -> None:
        seconds = self._settings.wait_seconds
        self.fail(request, "sink_stalled", f"no buffer became free in {seconds:g} s: the disk is slower than the model")

    def _send(
        self,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        begin: int,
        end: int,
        parts: list[Segment],
        buffer: Buffer,
        ready: Any,
    ) -> None:
        pairs = [(buffer.host, rows)] if scales is None else [(buffer.host, rows), (buffer.host_scales, scales)]
        copied = None
        buffer.users = len(parts)
        try:
            if self._stream is None:
                for host, device in pairs:
                    host[: end - begin].copy_(device[begin:end])
            else:
                with torch.cuda.stream(self._stream):
                    self._stream.wait_event(ready)
                    for host, device in pairs:
                        host[: end - begin].copy_(device[begin:end], non_blocking=True)
                        device.record_stream(self._stream)
                    # Writers wait for it, and must not spin while they do.
                    copied = torch.cuda.Event(blocking=True)
                    copied.record()
        except Exception:
            buffer.users = 1
            self.pool.release(buffer)
            raise
        for part in parts:
            self._inboxes[part.request.writer].put(
                _Rows(part.request, buffer, part.begin - begin, part.end - begin, copied)
            )

    def _write_loop(self, inbox: "queue.SimpleQueue[_Rows | _Drop]") -> None:
        while True:
            item = inbox.get()
            if isinstance(item, _Drop):
                _discard(item.request)
                continue
            try:
                if not item.request.failed:
                    self._write(item)
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in DISK_FULL
                _discard(item.request)
                self.fail(item.request, "disk_full" if full else "write_failed", f"{type(error).__name__}: {error}")
            finally:
                # A copy still under way (of a failed request) is no danger: later ones follow it on the same stream.
                self.pool.release(item.buffer)

    def _write(self, item: _Rows) -> None:
        request = item.request
        if request.file is None:
            request.file = StateFileWriter(
                self._settings, request.rid, request.generation, request.token_ids, self._hidden_size
            )
        if item.copied is not None:
            item.copied.synchronize()
        scales = item.buffer.scales
        if request.file.append(
            item.buffer.memory[item.begin : item.end], None if scales is None else scales[item.begin : item.end]
        ):
            num_bytes = request.file.finish()
            request.file = None
            with self._lock:
                self.files_written += 1
                self.bytes_written += num_bytes


def _discard(request: Request) -> None:
    if request.file is not None:
        request.file.discard()
        request.file = None
