"""Writing files so that a name always stands for finished content."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FULL_BYTES = 1 << 16
"""With fewer bytes free a file system counts as full: not even small records can be relied on to find room."""


def let_no_stranger_write() -> None:
    """From now on this process and those it starts make no file or folder that others than user and group can change,
    whatever umask they were given."""
    os.umask(os.umask(0o077) | 0o002)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write on the file system where ``folder`` is, or will be."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def fsync_directory(directory: Path) -> None:
    """Make renames inside ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; on success fsync it and rename it to ``path``.

    When the block raises, nothing has the final name and the temporary file is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 under a temporary name, fsync, rename."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON with sorted keys, so equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def canonical_json(content: Any) -> str:
    """One string for equal content, whatever the order of its keys."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
