"""Processes named by pid and start time, so that a recycled pid is never mistaken for the one that was meant."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
TERM_SEC = 3.0
"""Time a server has between TERM and KILL; nothing of worth is lost by a KILL."""
POLL_SEC = 0.05


def start_time(pid: int) -> int:
    """Start time of a running process in clock ticks after boot; 0 when there is none, or only a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def is_running(pid: int, started: int) -> bool:
    return pid > 0 and started > 0 and start_time(pid) == started


def die_with_parent() -> None:
    """For ``preexec_fn``: the kernel kills this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def group_members(leader: int, started: int) -> list[int]:
    """The running processes of the session that ``leader``, started at ``started``, opened; also after its end."""
    now = start_time(leader)
    if now and now != started:
        return []  # the pid was given to another process, so the group of old is gone
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
            _, _, group, session, *_ = fields
            if int(group) == leader == int(session) and int(fields[19]) >= started:
                members.append(int(entry.name))
    return members


def end_group(leader: int, started: int, term_sec: float = TERM_SEC) -> None:
    """TERM to the group, and KILL to what is left after ``term_sec``; returns when all are gone."""
    if leader <= 0 or started <= 0:
        return
    if term_sec > 0 and group_members(leader, started):
        _signal(leader, signal.SIGTERM)
        deadline = time.monotonic() + term_sec
        while time.monotonic() < deadline and group_members(leader, started):
            time.sleep(POLL_SEC)
    deadline = time.monotonic() + 30
    while group_members(leader, started) and time.monotonic() < deadline:
        _signal(leader, signal.SIGKILL)
        time.sleep(POLL_SEC)


def end_process(pid: int, started: int, patience_sec: float) -> None:
    """TERM, and KILL after ``patience_sec``; returns when the process is gone."""
    for number, patience in ((signal.SIGTERM, patience_sec), (signal.SIGKILL, 10.0)):
        if not is_running(pid, started):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience
        while is_running(pid, started) and time.monotonic() < deadline:
            time.sleep(POLL_SEC)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name: state, parent, group, session, …"""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
