"""Moving a broken or foreign file out of the way without destroying what it may show."""

import json
import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from hidden_states.layout import Results

log = logging.getLogger(__name__)


def quarantine(results: Results, path: Path, reason: str) -> Path:
    """Move ``path``, a file below the results, to the same place below ``quarantine/``; return the new path.

    A name that is taken gets a number. Each move is one line of ``quarantine/log.jsonl``: time, file, moved_to, reason.
    """
    relative = Path(os.path.relpath(path, results.root))
    if relative.parts[0] == "..":
        relative = Path(path.name)
    target, number = results.quarantine / relative, 0
    while os.path.lexists(target):
        number += 1
        target = results.quarantine / relative.with_name(f"{relative.name}.{number}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, target)  # renames, or copies where the store is on another file system
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(relative),
        "moved_to": os.path.relpath(target, results.root),
        "reason": reason,
    }
    with open(results.quarantine / "log.jsonl", "a", encoding="utf-8") as journal:
        journal.write(json.dumps(line, ensure_ascii=False) + "\n")
    log.warning("moved %s to %s: %s", line["file"], line["moved_to"], reason)
    return target
