"""An input file as a stream of bytes, unpacked where it is a gzip or zstd archive.

The content decides, not the name. An archive that breaks off, or is damaged, ends where nothing more can be unpacked:
what comes before is read, and ``problem`` then says what is wrong.
"""

import io
from pathlib import Path
from typing import BinaryIO

import pyarrow

PACKINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes → packing. A zstd archive may begin with frames to be skipped, whose mark has 16 forms."""

BUFFER_BYTES = 1 << 18


class InputFile:
    """A file that can be read from its beginning as often as it is needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.problem = path, path.stat().st_size, ""
        with open(path, "rb") as stream:
            self.head = stream.read(4)
        self._packing = next((name for mark, name in PACKINGS.items() if self.head.startswith(mark)), "")
        if self.head[1:] == b"\x2a\x4d\x18" and self.head[0] >> 4 == 5:
            self._packing = "zstd"
        self._raw: BinaryIO | None = None

    def open(self) -> BinaryIO:
        """A new stream of the unpacked content; the one before is closed."""
        return io.BufferedReader(_Unpacked(self), BUFFER_BYTES) if self._packing else self._reopen()

    def unpack(self) -> BinaryIO:
        """The archive's content from its beginning, without the care for its end."""
        return pyarrow.CompressedInputStream(pyarrow.PythonFile(self._reopen(), mode="r"), self._packing)

    def _reopen(self) -> BinaryIO:
        self.close()
        self._raw = open(self.path, "rb")  # noqa: SIM115 - closed by close()
        return self._raw

    @property
    def position(self) -> int:
        """How many bytes of the file, packed as it may be, have been read."""
        if self._raw is None:
            return 0
        return self.size if self._raw.closed else self._raw.tell()  # closed with an archive that has come to its end

    def close(self) -> None:
        if self._raw:
            self._raw.close()
            self._raw = None


class _Unpacked(io.RawIOBase):
    """The content of an archive up to where it can be unpacked."""

    def __init__(self, file: InputFile) -> None:
        self._file, self._inner, self._delivered = file, file.unpack(), 0
        self._rest: io.BytesIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if self._rest is None:
            try:
                block = self._inner.read(len(buffer))
            except OSError as error:
                if error.errno is not None:
                    raise  # of the disk, not of the archive
                self._file.problem = f"the archive breaks off or is damaged: {error}"
                self._rest = io.BytesIO(self._rescue())
        if self._rest is not None:
            block = self._rest.read(len(buffer))
        buffer[: len(block)] = block
        self._delivered += len(block)
        return len(block)

    def _rescue(self) -> bytes:
        """What the failed read had unpacked before it failed, of which nothing came back."""
        self._inner = self._file.unpack()
        left = self._delivered
        while left:
            left -= len(self._inner.read(min(left, BUFFER_BYTES)))
        rescued = bytearray()
        try:
            while byte := self._inner.read(1):
                rescued += byte
        except OSError:
            pass
        return bytes(rescued)
