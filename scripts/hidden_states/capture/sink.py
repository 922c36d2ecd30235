"""From the device to the dump directory without stopping the scheduler.

Rows of a forward are copied to a host buffer, on a CUDA device by a stream of its own; writer threads take them from
there. Each request belongs to one writer, so its rows are written, and hashed, in order.
"""

import errno
import json
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from hidden_states.capture.buffers import Buffer, BufferPool
from hidden_states.capture.settings import CaptureSettings
from hidden_states.capture.state_writer import StateFileWriter

log = logging.getLogger(__name__)

NUM_WRITERS = 8
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Request:
    """A captured request as the scheduler's thread sees it. ``token_ids``: its prompt, int64 [num_tokens].
    ``next_position`` rows were taken so far; ``generation`` counts its starts from position 0."""

    rid: str
    token_ids: numpy.ndarray
    generation: int = 0
    next_position: int = 0
    failed: bool = False
    last_seen: float = 0.0


@dataclass(frozen=True)
class Segment:
    """Rows ``begin`` to ``end`` of a forward are the next rows of ``request``."""

    request: Request
    begin: int
    end: int


@dataclass(frozen=True)
class _Rows:
    request: Request
    generation: int
    buffer: Buffer
    begin: int
    end: int
    copied: Any
    """Event of the copy into the buffer, or None when it is done already."""


@dataclass(frozen=True)
class _Drop:
    rid: str


class Sink:
    """Takes the rows of forwards, in order, from one thread. Nothing here raises into the scheduler but a bug."""

    def __init__(self, settings: CaptureSettings, hidden_size: int, device: torch.device) -> None:
        self._settings, self._hidden_size = settings, hidden_size
        self._num_slots = len(settings.layers) + 1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pool = BufferPool(
            settings.buffer_bytes, self._num_slots * hidden_size, torch.bfloat16, pinned=device.type == "cuda"
        )
        self.files_written = self.bytes_written = 0
        self._lock = threading.Lock()
        self._queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(NUM_WRITERS)]
        for index, inbox in enumerate(self._queues):
            threading.Thread(target=self._write_loop, args=(inbox,), name=f"hs-writer-{index}", daemon=True).start()

    def take(self, rows: torch.Tensor, segments: list[Segment]) -> None:
        """``rows``: storage dtype [num_rows, num_slots * hidden_size] on the device, not written to afterwards.

        Waits for a free buffer, ``wait_seconds`` at most for the whole call; requests whose rows found none fail
        with ``sink_stalled``.
        """
        deadline = time.monotonic() + self._settings.wait_seconds
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record()
        begin = segments[0].begin
        last = segments[-1].end
        while begin < last:
            end = min(begin + self.pool.num_rows, last)
            parts = [
                Segment(s.request, max(s.begin, begin), min(s.end, end))
                for s in segments
                if s.begin < end and s.end > begin and not s.request.failed
            ]
            if parts:
                self._copy(rows, begin, end, parts, ready, deadline)
            begin = end

    def fail(self, request: Request, reason: str, detail: str) -> None:
        """Report a request as failed and forget its rows."""
        if not request.failed:
            request.failed = True
            self._inbox(request.rid).put(_Drop(request.rid))
            self._report(request.rid, reason, detail)

    def drop(self, rid: str) -> None:
        """Remove what was written of a request whose client went away."""
        self._inbox(rid).put(_Drop(rid))

    def _copy(
        self, rows: torch.Tensor, begin: int, end: int, parts: list[Segment], ready: Any, deadline: float
    ) -> None:
        buffer = self.pool.acquire(deadline)
        if buffer is None:
            for part in parts:
                self.fail(
                    part.request,
                    "sink_stalled",
                    f"no buffer became free within {self._settings.wait_seconds:g} s: the disk is slower than the "
                    "server",
                )
            return
        host = buffer.host[: end - begin]
        copied = None
        if self._stream is None:
            host.copy_(rows[begin:end])
        else:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(ready)
                host.copy_(rows[begin:end], non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()
            rows.record_stream(self._stream)
        buffer.users = len(parts)
        for part in parts:
            self._inbox(part.request.rid).put(
                _Rows(part.request, part.request.generation, buffer, part.begin - begin, part.end - begin, copied)
            )

    def _inbox(self, rid: str) -> queue.SimpleQueue:
        return self._queues[hash(rid) % NUM_WRITERS]

    def _write_loop(self, inbox: queue.SimpleQueue) -> None:
        writers: dict[str, tuple[int, StateFileWriter]] = {}
        while True:
            item = inbox.get()
            if isinstance(item, _Drop):
                if item.rid in writers:
                    writers.pop(item.rid)[1].discard()
                continue
            try:
                if not item.request.failed:
                    self._write(writers, item)
            except Exception as error:
                reason = "disk_full" if isinstance(error, OSError) and error.errno in DISK_FULL else "write_failed"
                item.request.failed = True
                if item.request.rid in writers:
                    writers.pop(item.request.rid)[1].discard()
                self._report(item.request.rid, reason, f"{type(error).__name__}: {error}")
            finally:
                self.pool.release(item.buffer)

    def _write(self, writers: dict[str, tuple[int, StateFileWriter]], item: _Rows) -> None:
        request = item.request
        generation, writer = writers.get(request.rid, (-1, None))
        if generation != item.generation:
            if writer is not None:
                writers.pop(request.rid)[1].discard()
            writer = StateFileWriter(self._settings, request.rid, item.generation, request.token_ids, self._hidden_size)
            writers[request.rid] = (item.generation, writer)
        if item.copied is not None:
            item.copied.synchronize()
        if writer.append(item.buffer.memory[item.begin : item.end]):
            num_bytes = writer.finish()
            del writers[request.rid]
            with self._lock:
                self.files_written += 1
                self.bytes_written += num_bytes

    def _report(self, rid: str, reason: str, detail: str) -> None:
        log.error("capture of %s failed: %s: %s", rid, reason, detail)
        try:
            write_error(self._settings.dump, rid, reason, detail)
        except OSError:
            # No room for the report either: try until there is, so that the client is not left waiting.
            threading.Thread(target=_report_later, args=(self._settings.dump, rid, reason, detail), daemon=True).start()


def write_error(dump: Path, rid: str, reason: str, detail: str) -> None:
    """Write ``<rid>.error.json`` under a temporary name and rename it. Raises OSError."""
    content = json.dumps({"rid": rid, "reason": reason, "detail": detail})
    temporary = dump / f"{rid}.error.tmp"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
    temporary.rename(dump / f"{rid}.error.json")


def _report_later(dump: Path, rid: str, reason: str, detail: str) -> None:
    while dump.is_dir():
        time.sleep(1)
        try:
            return write_error(dump, rid, reason, detail)
        except OSError:
            continue
