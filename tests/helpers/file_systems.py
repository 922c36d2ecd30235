"""Small file systems of a test's own, to fill up, to make read-only, or just to be another one than the disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallFileSystem:
    """A tmpfs mounted on ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: str) -> None:
        """``size``: as mount takes it, such as ``16m``."""
        _mount("-o", f"remount,size={size}", str(self.folder))

    def fill(self) -> None:
        """Leave no byte free; ``empty`` gives the space back."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while True:
                os.write(descriptor, bytes(1 << 16))
        except OSError:
            assert os.statvfs(self.folder).f_bavail == 0
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


@contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[SmallFileSystem]:
    """Mount a tmpfs of ``size`` (such as ``16m``) on ``folder``, which is made; skips the test where nothing may be
    mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder))
    try:
        yield SmallFileSystem(folder)
    finally:
        _unmount(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody, root included, can write to ``folder`` inside the block."""
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _unmount(folder)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0 and ("permission denied" in done.stderr or "must be superuser" in done.stderr):
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def _unmount(folder: Path) -> None:
    # Lazily: a server that still runs may hold a file open, and it is ended later.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
