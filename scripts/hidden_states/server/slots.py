"""Slots: sets of devices of this host, held by one client at a time, each with at most one server.

A node-local folder holds, for every device, two files for ``flock``: ``<device>.lease`` is held by the client that
works with the server, ``<device>.keeper`` by the process that owns the server. The kernel frees both when their
holders die. Locks are per device, never per specification: two servers that share a device cannot run at once.
"""

import contextlib
import fcntl
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hidden_states.errors import UserError
from hidden_states.server.devices import slot_devices
from hidden_states.server.record import Record, read_record

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "HIDDEN_STATES_SLOT_DIR"
POLL_SEC = 0.25
WAITING_MESSAGE_SEC = 30
FIRST_MESSAGE_SEC = 2
"""A keeper holds the locks for an instant whenever it looks whether they are free; that is no wait to speak of."""


@dataclass(frozen=True)
class Slot:
    """A set of devices; ``index`` counts the slots of one configuration, and names nothing across runs."""

    folder: Path
    index: int
    devices: tuple[str, ...]

    @property
    def name(self) -> str:
        """Such as ``myhost-cuda-0-1-2-3``."""
        kind = self.devices[0].rpartition("-")[0]
        return f"{_host()}-{kind}-" + "-".join(device.rpartition("-")[2] for device in self.devices)

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def checked(self) -> Path:
        """Which start passed its self-check, and with what figures; written by the client."""
        return self.folder / f"{self.name}.checked.json"

    @property
    def start_file(self) -> Path:
        """What the keeper is to start."""
        return self.folder / f"{self.name}.start.json"

    @property
    def lease_files(self) -> list[Path]:
        return [self.folder / f"{_host()}-{device}.lease" for device in self.devices]

    @property
    def keeper_files(self) -> list[Path]:
        return [self.folder / f"{_host()}-{device}.keeper" for device in self.devices]


def slot_folder() -> Path:
    """The node-local folder of the locks, made when it is not there; only the user may write to it.

    Raises UserError when it cannot be used.
    """
    folder = _folder_name()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise UserError(f"{_slot_words(folder)} cannot be made ({error.strerror}); {_SET_FOLDER}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise UserError(f"{_slot_words(folder)} is no folder; {_SET_FOLDER}")
    if status.st_uid != os.geteuid():
        raise UserError(f"{_slot_words(folder)} belongs to another user (id {status.st_uid}); {_SET_FOLDER}")
    if status.st_mode & 0o022:
        raise UserError(
            f"{_slot_words(folder)} can be written by others (mode {stat.S_IMODE(status.st_mode):o}); "
            f"run `chmod 700 {folder}`, or {_SET_FOLDER}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{_slot_words(folder)} cannot be written to; {_SET_FOLDER}")
    return folder


def all_slots(device: str, count: int, tensor_parallel_size: int) -> list[Slot]:
    """The slots of a configuration. Raises UserError when there are too few devices."""
    folder = slot_folder()
    return [Slot(folder, index, tuple(slot_devices(device, index, tensor_parallel_size))) for index in range(count)]


@contextlib.contextmanager
def acquire(slots: list[Slot], left_to_another: Callable[[Slot], bool] = lambda slot: False) -> Iterator[Slot]:
    """Hold one of ``slots`` inside the block, waiting until one is free; the waiting is logged with who holds them.

    A free slot of which ``left_to_another`` is true counts as taken.
    """
    start = time.monotonic()
    told = start - WAITING_MESSAGE_SEC + FIRST_MESSAGE_SEC
    while True:
        for slot in slots:
            with contextlib.ExitStack() as stack:
                if try_lock(stack, slot.lease_files) and not left_to_another(slot):
                    for file in slot.lease_files:
                        file.write_text(f"pid {os.getpid()} in {os.getcwd()}")
                    try:
                        yield slot
                    finally:
                        for file in slot.lease_files:
                            os.utime(file)
                    return
        if time.monotonic() - told >= WAITING_MESSAGE_SEC:
            told = time.monotonic()
            log.info("waiting for a server (%.0f s): %s", told - start, "; ".join(_holder(slot) for slot in slots))
        time.sleep(POLL_SEC)


def try_lock(stack: contextlib.ExitStack, files: list[Path], shared: bool = False, note: str = "") -> bool:
    """Lock all ``files`` in order without waiting; they stay locked until ``stack`` closes. False when one is taken.

    The descriptors are not inherited by programs that are started. ``note`` is written into the files, for messages.
    """
    for file in files:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if note:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)
    return True


def seconds_unused(slot: Slot) -> float:
    """Since a client of the slot last took it or gave it back (one that was killed only took it)."""
    return time.time() - max(file.stat().st_mtime for file in slot.lease_files)


def is_locked(files: list[Path]) -> bool:
    """Whether any of ``files`` is held by someone."""
    with contextlib.ExitStack() as stack:
        return not try_lock(stack, [file for file in files if file.exists()], shared=True)


def neighbours(slot: Slot) -> list[tuple[Path, Record]]:
    """The records of servers, of whatever configuration, that use a device of ``slot``."""
    found = []
    for path in sorted(slot.folder.glob(f"{_host()}-*.json")):
        record = read_record(path)
        if record is not None and set(record.devices) & set(slot.devices):
            found.append((path, record))
    return found


def host_records(folder: Path) -> list[tuple[Path, Record]]:
    """The records of all servers of this host."""
    found = [(path, read_record(path)) for path in sorted(folder.glob(f"{_host()}-*.json"))]
    return [(path, record) for path, record in found if record is not None]


def keeper_files(folder: Path, devices: list[str]) -> list[Path]:
    return [folder / f"{_host()}-{device}.keeper" for device in devices]


_SET_FOLDER = f"set {FOLDER_VARIABLE} to a folder of yours on a local disk."


def _slot_words(folder: Path) -> str:
    return f"the folder {folder}, which holds the locks of the servers on this host,"


def _folder_name() -> Path:
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "hidden-states"
    return Path(tempfile.gettempdir() if not os.path.isdir("/tmp") else "/tmp") / f"hidden-states-{os.geteuid()}"


def _host() -> str:
    return socket.gethostname().split(".")[0] or "localhost"


def _holder(slot: Slot) -> str:
    try:
        who = slot.lease_files[0].read_text(errors="replace") or "an unknown process"
    except OSError:
        who = "an unknown process"
    return f"{', '.join(slot.devices)} held by {who}"
