"""What is known of the server of a slot: a small JSON file, written by its keeper, read by every client."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

STARTING, READY, FAILED, STOPPED = "starting", "ready", "failed", "stopped"


@dataclass
class Record:
    """``start_id``: random, different for each start. ``server_start``/``keeper_start``: start time of the process
    in clock ticks after boot, which with its pid names it for good. ``api_key`` and with it the file are private."""

    state: str
    start_id: str
    server_hash: str
    run: str
    devices: list[str]
    dump: str
    log: str
    rid_prefix: str
    keeper_pid: int = 0
    keeper_start: int = 0
    server_pid: int = 0
    server_start: int = 0
    url: str = ""
    api_key: str = ""
    reason: str = ""
    log_tail: list[str] = field(default_factory=list)


def write_record(path: Path, record: Record) -> None:
    """Write under a temporary name of mode 0600, then rename."""
    write_private(path, json.dumps(dataclasses.asdict(record), indent=2))


def write_private(path: Path, text: str) -> None:
    """A file that only the user can read, complete whenever it has its name. No fsync: it lives as long as the boot."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.rename(path)


def read_record(path: Path) -> Record | None:
    """The record, or None when there is none (any other file gives None too)."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
