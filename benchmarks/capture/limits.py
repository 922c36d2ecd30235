"""What the machine itself can do: durable writes, copies from the device, hashing."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import xxhash

FILE_BYTES = 128 << 20
WRITERS = (1, 4, 8)
SECONDS = 8.0


def measure_limits(folder: Path) -> dict[str, Any]:
    """Bytes per second: files of 128 MiB, each with an fsync, in ``folder``, by 1, 4 and 8 writers at a time; XXH3-128
    of one thread; device to pinned memory, where there is a device."""
    found: dict[str, Any] = {
        "durable_write_bytes_per_second": {str(count): _write(folder, count) for count in WRITERS},
        "xxh3_bytes_per_second": _hash(),
    }
    return found | _device_to_host()


def _block() -> numpy.ndarray:
    return numpy.random.default_rng(0).integers(0, 256, FILE_BYTES, dtype=numpy.uint8)


def _write(folder: Path, writers: int) -> int:
    block = _block()
    end = time.monotonic() + SECONDS

    def one(number: int) -> int:
        written = 0
        path = folder / f"limit-{number}"
        while time.monotonic() < end:
            with open(path, "wb", buffering=0) as file:
                view = memoryview(block)
                while view:
                    view = view[file.write(view[: 16 << 20]) :]
                os.fsync(file.fileno())
            path.unlink()
            written += FILE_BYTES
        return written

    start = time.monotonic()
    with ThreadPoolExecutor(writers) as pool:
        written = sum(pool.map(one, range(writers)))
    return round(written / (time.monotonic() - start))


def _hash() -> int:
    block = _block()
    start = time.monotonic()
    for _ in range(8):
        xxhash.xxh3_128(block).digest()
    return round(8 * FILE_BYTES / (time.monotonic() - start))


def _device_to_host() -> dict[str, int]:
    import torch

    if not torch.cuda.is_available():
        return {}
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(20):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return {"device_to_host_bytes_per_second": round(20 * source.numel() / (start.elapsed_time(end) / 1e3))}
