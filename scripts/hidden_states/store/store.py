"""The content-addressed store: ``states/<fingerprint>/<ab>/<key>.safetensors``, each file read-only and checked.

A file gets its name in the store only after ``check_state_file`` passed, and is never written again. Copies on
their way in from another file system lie in ``states/<fingerprint>/incoming/``.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hidden_states.files import fsync_directory
from hidden_states.layout import Results
from hidden_states.store.checksums import CheckedFile, StateFileError, check_state_file, read_header
from hidden_states.store.quarantine import quarantine
from hidden_states.store.state_file import StateHeader

HASH_PATTERN = re.compile(r"[0-9a-f]{32}")
SUFFIX = ".safetensors"
INCOMING = "incoming"
LOCK = ".lock"


class Store:
    """The states of one fingerprint. Safe for several threads and processes at once."""

    def __init__(self, results: Results, fingerprint: str) -> None:
        if not HASH_PATTERN.fullmatch(fingerprint):
            raise ValueError(f"not a fingerprint: {fingerprint!r}")
        self.results, self.fingerprint = results, fingerprint
        self.directory = results.states / fingerprint
        self._not_synced: set[Path] = set()

    def path(self, key: str) -> Path:
        """Where the state of ``key`` is or will be."""
        if not HASH_PATTERN.fullmatch(key):
            raise ValueError(f"not a key: {key!r}")
        return self.directory / key[:2] / f"{key}{SUFFIX}"

    def has(self, expected: StateHeader) -> CheckedFile | None:
        """The stored state with this header and the right size, or None. Reads 1024 bytes; the checksum field is
        taken from the file."""
        try:
            return read_header(self.path(expected.key), expected)
        except StateFileError:
            return None

    def publish(self, file: Path, checked: CheckedFile) -> CheckedFile:
        """Move ``file``, which passed ``check_state_file`` as ``checked``, into the store.

        The file must have been fsynced. When another job published the same state meanwhile, that one stays and
        ``file`` is removed. A broken file under the name is quarantined. Call ``sync`` before relying on it after a
        power cut. Raises StateFileError when a copy from another file system differs, and OSError (ENOSPC).
        """
        final = self.path(checked.header.key)
        final.parent.mkdir(parents=True, exist_ok=True)
        source = self._bring_over(file, checked) if _device(file) != _device(final.parent) else file
        os.chmod(source, 0o444)
        with self._locked():
            present = self.has(checked.header)
            if present is None:
                if os.path.lexists(final):
                    quarantine(self.results, final, "found broken when its state was published again")
                os.rename(source, final)
                self._not_synced.add(final.parent)
                present = read_header(final, checked.header)
            else:
                source.unlink()
        if source != file:
            file.unlink()
        return present

    def sync(self) -> None:
        """Make every rename of ``publish`` so far durable."""
        directories, self._not_synced = self._not_synced, set()
        for directory in sorted(directories):
            fsync_directory(directory)
        if directories:
            fsync_directory(self.directory)
            fsync_directory(self.directory.parent)

    def quarantine(self, key: str, reason: str) -> Path:
        """Move the file of ``key`` to the quarantine; return where it is now."""
        return quarantine(self.results, self.path(key), reason)

    def evict(self, keys: Iterable[str]) -> tuple[int, int]:
        """Remove the states of ``keys``; return how many files and bytes they had."""
        count = num_bytes = 0
        for key in keys:
            path = self.path(key)
            try:
                size = path.lstat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            count, num_bytes = count + 1, num_bytes + size
        return count, num_bytes

    def remove_stale_copies(self) -> None:
        """Remove copies that a killed process left in ``incoming``."""
        incoming = self.directory / INCOMING
        for path in incoming.iterdir() if incoming.is_dir() else ():
            if is_stale_copy(path):
                path.unlink(missing_ok=True)

    def _bring_over(self, file: Path, checked: CheckedFile) -> Path:
        """Copy ``file`` to this file system under a temporary name, fsync it and check the copy in full."""
        incoming = self.directory / INCOMING
        incoming.mkdir(exist_ok=True)
        copy = incoming / f"{os.getpid()}.{file.name}"
        try:
            with open(file, "rb") as source, open(copy, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 22)
                target.flush()
                os.fsync(target.fileno())
            if check_state_file(copy, checked.header).header != checked.header:
                raise StateFileError("checksum_mismatch", "the copy in the store's file system differs")
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        return copy

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class StoredFile:
    """A file found below ``states/``. ``key`` and ``fingerprint`` are None for one that has no place there."""

    path: Path
    size: int
    num_links: int
    fingerprint: str | None
    key: str | None

    @property
    def foreign(self) -> bool:
        return self.key is None


def stored_files(results: Results) -> Iterator[StoredFile]:
    """Every file below ``states/`` of any fingerprint, by name alone; the store's own temporary files excepted."""
    for fingerprint in _sorted_entries(results.states):
        is_ours = HASH_PATTERN.fullmatch(fingerprint.name) and fingerprint.is_dir(follow_symlinks=False)
        if not is_ours:
            yield from _foreign(fingerprint)
            continue
        for shard in _sorted_entries(Path(fingerprint.path)):
            if shard.name in (LOCK, INCOMING):
                continue
            if not (re.fullmatch(r"[0-9a-f]{2}", shard.name) and shard.is_dir(follow_symlinks=False)):
                yield from _foreign(shard)
                continue
            for entry in _sorted_entries(Path(shard.path)):
                key = entry.name.removesuffix(SUFFIX)
                good_name = entry.name.endswith(SUFFIX) and HASH_PATTERN.fullmatch(key) and key[:2] == shard.name
                if good_name and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield StoredFile(Path(entry.path), status.st_size, status.st_nlink, fingerprint.name, key)
                else:
                    yield from _foreign(entry)


def stale_copies(results: Results) -> Iterator[Path]:
    """Copies that killed processes left in ``incoming`` folders."""
    for path in results.states.glob(f"*/{INCOMING}/*"):
        if is_stale_copy(path):
            yield path


def is_stale_copy(path: Path) -> bool:
    """Whether the process that made this file of ``incoming`` is gone; its number leads the name."""
    number = path.name.split(".")[0]
    return not (number.isdigit() and Path(f"/proc/{number}").exists())


def _sorted_entries(directory: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return []
        raise


def _foreign(entry: os.DirEntry) -> Iterator[StoredFile]:
    if entry.is_dir(follow_symlinks=False):
        for inner in _sorted_entries(Path(entry.path)):
            yield from _foreign(inner)
    else:
        status = entry.stat(follow_symlinks=False)
        yield StoredFile(Path(entry.path), status.st_size, status.st_nlink, None, None)


def _device(path: Path) -> int:
    return path.stat().st_dev
