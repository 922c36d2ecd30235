"""Writes one request's rows into ``<rid>.<generation>.tmp``, and gives the file its name when it is whole."""

import contextlib
import dataclasses
import os

import numpy
import xxhash

from hidden_states.capture.settings import CaptureSettings
from hidden_states.store.state_file import DTYPES, HEADER_BYTES, NO_CHECKSUM, StateHeader, sample_key


class StateFileWriter:
    """Rows arrive in order; checksum and position follow them. Used by one thread.

    ``generation`` tells apart the files of one rid that was begun more than once; ``token_ids``: int64 [num_tokens].
    Every method but ``discard`` raises OSError.
    """

    def __init__(
        self, settings: CaptureSettings, rid: str, generation: int, token_ids: numpy.ndarray, hidden_size: int
    ) -> None:
        self._final_path = settings.dump / f"{rid}.safetensors"
        self._path = settings.dump / f"{rid}.{generation}.tmp"
        self._ids = numpy.ascontiguousarray(token_ids, dtype="<i8").tobytes()
        self._header = StateHeader(
            key=sample_key(self._ids),
            fingerprint=settings.fingerprint,
            layers=settings.layers,
            final=settings.final,
            dtype=DTYPES[settings.storage],
            num_tokens=len(token_ids),
            hidden_size=hidden_size,
            checksum=NO_CHECKSUM,
        )
        self._scales = bytearray()
        self._digest = xxhash.xxh3_128()
        self._offset = HEADER_BYTES
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, rows: numpy.ndarray, scales: numpy.ndarray | None) -> bool:
        """Write ``rows``, contiguous uint8 [num_rows, row_bytes]; True when they were the last. ``scales``: float32
        [num_rows] with float8, kept until then."""
        data = memoryview(rows).cast("B")
        if scales is not None:
            self._scales += scales.astype("<f4", copy=False).tobytes()
        self._digest.update(data)
        self._write(data)
        return self._offset == HEADER_BYTES + self._header.states_bytes

    def finish(self) -> int:
        """Write ids, scales and header, fsync, rename; returns the bytes of the file."""
        for data in (self._ids, self._scales):
            self._digest.update(data)
            self._write(memoryview(data))
        header = dataclasses.replace(self._header, checksum=self._digest.hexdigest())
        os.pwrite(self._descriptor, header.to_bytes(), 0)
        os.fsync(self._descriptor)
        self._close()
        os.rename(self._path, self._final_path)
        return self._offset

    def discard(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        # Never twice: another thread's file may have the number by then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._descriptor, data, self._offset)
            data = data[count:]
            self._offset += count
