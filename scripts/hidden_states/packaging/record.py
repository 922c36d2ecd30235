"""What was written into a packaged dataset: ``checksums.json``, and writing that leaves equal files alone.

``checksums.json`` maps the name of every generated file to ``{"bytes", "checksum"}``, checksum being XXH3-128 of the
whole file in hex. A file made from large inputs also has ``"source"``, the digest of what it was made from, so that
the next run can tell without making it again that it is still right. State files are not listed: each carries its
own checksum, and the manifests repeat it.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import xxhash

from hidden_states.files import fsync_directory, write_json
from hidden_states.store.checksums import file_checksum

CHECKSUMS = "checksums.json"
PROVENANCE = "provenance.json"


class _HashingStream:
    """A binary file that takes the checksum of what is written to it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._digest, self.size, self.closed = stream, xxhash.xxh3_128(), 0, False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        self._stream.flush()

    def checksum(self) -> str:
        return self._digest.hexdigest()


class Record:
    """The generated files of one packaged dataset in ``folder``, by their name relative to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed: list[str] = []
        """Names of the files that this run wrote."""
        self._before: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
            self._before = {name: entry for name, entry in content.items() if isinstance(entry, dict)}
        self._entries: dict[str, dict[str, Any]] = {}
        self._changing = False

    def knows(self, name: str) -> bool:
        """Whether this run or the one before it generated the file ``name``."""
        return name in self._entries or name in self._before

    def begin_change(self) -> None:
        """Called before a file of the dataset changes: takes ``provenance.json`` away until all is right again, so
        that a dataset left half-way by a killed run is not taken for a finished one."""
        if not self._changing:
            (self.folder / PROVENANCE).unlink(missing_ok=True)
            self._changing = True

    def write(self, name: str, make: Callable[[Any], None], source: str | None = None) -> None:
        """Bring the file ``name`` to the content that ``make`` writes to the binary stream it is given.

        With ``source`` (the digest of everything the content depends on), ``make`` is called only when the file on
        disk is not the one recorded for this source. A file that already has the content keeps its inode and mtime.
        """
        path = self.folder / name
        before = self._before.get(name)
        if source is not None and before and before.get("source") == source and _is_as_recorded(path, before):
            self._entries[name] = before
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as stream:
                hashing = _HashingStream(stream)
                make(hashing)
                stream.flush()
                os.fsync(stream.fileno())
            entry: dict[str, Any] = {"bytes": hashing.size, "checksum": hashing.checksum()}
            if not _is_as_recorded(path, entry):
                self.begin_change()
                os.replace(temporary, path)
                fsync_directory(path.parent)
                self.changed.append(name)
        finally:
            temporary.unlink(missing_ok=True)
        self._entries[name] = entry if source is None else {**entry, "source": source}

    def write_bytes(self, name: str, content: bytes) -> None:
        """As ``write``, for content at hand."""
        self.write(name, lambda stream: stream.write(content))

    def finish(self, provenance: bytes) -> None:
        """Remove the files that an earlier run generated and this one did not; write ``checksums.json`` and then, last
        of all, ``provenance.json``, both only where they differ."""
        entry = {"bytes": len(provenance), "checksum": xxhash.xxh3_128(provenance).hexdigest()}
        self._entries[PROVENANCE] = entry
        if self._entries != self._before:
            self.begin_change()
            for name in self._before.keys() - self._entries.keys():
                if os.path.basename(name) == name:
                    (self.folder / name).unlink(missing_ok=True)
            write_json(self.folder / CHECKSUMS, self._entries)
        self.write_bytes(PROVENANCE, provenance)


def _is_as_recorded(path: Path, entry: dict[str, Any]) -> bool:
    """Whether the file at ``path`` has the recorded size and, read in full, the recorded checksum."""
    try:
        return path.stat().st_size == entry.get("bytes") and file_checksum(path) == entry.get("checksum")
    except OSError:
        return False
