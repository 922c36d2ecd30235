"""How much memory the processes of a run had at most."""

import threading
from collections.abc import Callable
from pathlib import Path

import psutil

SECONDS_BETWEEN = 0.1


class PeakMemory:
    """Inside its block, watches processes; ``bytes_of`` gives the peak resident memory of each by its name.

    ``name_of``: the name for a process with this command line, or None for one that is not watched.
    """

    def __init__(self, name_of: Callable[[psutil.Process, list[str]], str | None]) -> None:
        self.bytes_of: dict[str, int] = {}
        self._name_of = name_of
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(SECONDS_BETWEEN):
            for pid in psutil.pids():
                try:
                    process = psutil.Process(pid)
                    if (name := self._name_of(process, process.cmdline())) is not None:
                        self.bytes_of[name] = max(self.bytes_of.get(name, 0), peak_bytes(pid))
                except (psutil.Error, OSError):
                    continue  # it ended meanwhile


def peak_bytes(pid: int) -> int:
    """VmHWM of a running process: its largest resident memory so far. Raises OSError when it has ended."""
    return _status(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """The peak of a process counts from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident_bytes(pid: int) -> int:
    """VmRSS of a running process. Raises OSError when it has ended."""
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no {field}: it has ended")
