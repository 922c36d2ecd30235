"""Bounded memory, bounded waits, and every failure of the disk reported."""

import errno
import os
import threading
import time

import pytest
import torch
from helpers.forwards import Forwards, assert_captured, names, reason
from hidden_states.capture import reports
from hidden_states.capture.buffers import BufferPool
from hidden_states.capture.state_writer import StateFileWriter


def test_a_forward_larger_than_a_buffer_is_split(forwards: Forwards) -> None:
    pool = forwards.recorder._sink.pool
    assert pool.num_rows < 400
    forwards.run((forwards.request("hs-a", 1000), 0, 1000), (forwards.request("hs-b", 900), 0, 900))
    assert_captured(forwards, "hs-a", 1000)
    assert_captured(forwards, "hs-b", 900)
    assert 0 < pool.allocated_bytes <= 1 << 16


@pytest.mark.parametrize("limit", [1 << 30, 3 << 30, 4 << 30, 100_000, 5_000_000_000])
def test_the_pool_stays_within_its_limit(limit: int) -> None:
    """Buffers are powers of two, as the allocator of pinned memory would round them up to that."""
    pool = BufferPool(limit, 1000, torch.bfloat16, pinned=False)
    size = pool._buffer_bytes
    assert size & (size - 1) == 0 and pool.num_rows * 2000 <= size
    assert limit / 2 < pool.num_buffers * size <= limit and pool.num_buffers >= 16


def test_a_buffer_is_free_again_only_when_the_rows_of_all_its_requests_are_written() -> None:
    pool = BufferPool(1 << 16, 1000, torch.bfloat16, pinned=False)
    buffers = [pool.acquire(0) for _ in range(pool.num_buffers)]
    buffers[0].users = 2
    pool.release(buffers[0])
    assert pool.acquire(0) is None
    pool.release(buffers[0])
    assert pool.acquire(0) is buffers[0]


def test_too_little_memory_for_two_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SGLANG_HS_BUFFER_BYTES is 1,000; .* need at least 4,096"):
        BufferPool(1000, 1000, torch.bfloat16, pinned=False)


def test_a_stalled_disk_fails_requests_after_a_bounded_wait(
    forwards: Forwards, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = threading.Event(), StateFileWriter._write
    monkeypatch.setattr(StateFileWriter, "_write", lambda self, data: (disk.wait(20), write(self, data)))
    num_rows = forwards.recorder._sink.pool.num_rows * 40
    start = time.monotonic()
    forwards.run((forwards.request("hs-a", num_rows), 0, num_rows))
    assert 0.25 < time.monotonic() - start < 2
    assert reason(forwards, "hs-a") == "sink_stalled"
    disk.set()
    time.sleep(0.2)
    forwards.run((forwards.request("hs-b", 5), 0, 5))
    assert_captured(forwards, "hs-b", 5)
    assert names(forwards) == {"hs-a.error.json", "hs-b.safetensors"}
    assert forwards.recorder.stats()["wait_seconds"] > 0.25


@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, "disk_full"), (errno.EIO, "write_failed")])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "open", "rename"])
def test_a_failed_write_is_reported_and_leaves_nothing(
    forwards: Forwards, monkeypatch: pytest.MonkeyPatch, code: int, expected: str, call: str
) -> None:
    real, broken = getattr(os, call), True

    def fail(*args, **kwargs):
        if broken and threading.current_thread().name.startswith("hs-writer"):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, fail)
    forwards.run((forwards.request("hs-a", 5), 0, 5))
    assert reason(forwards, "hs-a") == expected
    broken = False
    forwards.run((forwards.request("hs-b", 5), 0, 5))
    assert_captured(forwards, "hs-b", 5)
    assert names(forwards) == {"hs-a.error.json", "hs-b.safetensors"}


def test_a_report_waits_until_the_disk_has_room_for_it(forwards: Forwards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "SECONDS_BETWEEN", 0.05)
    write, full = reports.write_small_file, True

    def write_or_not(path, content):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(reports, "write_small_file", write_or_not)
    forwards.run((forwards.request("hs-a", 20), 4, 16))
    time.sleep(0.3)
    assert names(forwards) == set()
    full = False
    assert reason(forwards, "hs-a") == "rows_missing"
