"""The server's dump directory as the client sees it: ``<rid>.safetensors`` or ``<rid>.error.json``."""

import json
from pathlib import Path

from hidden_states.extraction.faults import BadCapture, DiskFull, SinkStalled

STATE_SUFFIX = ".safetensors"
ERROR_SUFFIX = ".error.json"
CLAIMED_SUFFIX = ".claimed"


def look(dump: Path, rid: str) -> Path | None:
    """The finished file of a request, or None while there is none.

    Raises SinkStalled, DiskFull or BadCapture when the plug-in reported an error; its report is removed.
    """
    state = dump / f"{rid}{STATE_SUFFIX}"
    if state.exists():
        return state
    report = dump / f"{rid}{ERROR_SUFFIX}"
    if not report.exists():
        return None
    try:
        content = json.loads(report.read_text(encoding="utf-8"))
        reason, detail = str(content["reason"]), str(content["detail"])
    except (ValueError, KeyError, TypeError) as error:
        reason, detail = "capture_failed", f"the report of the plug-in is unreadable ({error})"
    report.unlink(missing_ok=True)
    if reason == "sink_stalled":
        raise SinkStalled(detail)
    if reason == "disk_full":
        raise DiskFull(detail)
    raise BadCapture(reason, detail)


def claim(file: Path) -> Path:
    """Take a finished file away under another name, so that what is checked is what is published: a second request of
    the same name, should anybody send one, would put its file in the place of the first's."""
    claimed = file.with_name(file.name + CLAIMED_SUFFIX)
    file.rename(claimed)
    return claimed


def sweep(dump: Path, rid_prefix: str) -> None:
    """Remove finished files of requests that nobody waits for. Files that the plug-in still writes are its own."""
    for path in dump.glob(f"{rid_prefix}*"):
        if path.name.endswith((STATE_SUFFIX, ERROR_SUFFIX, CLAIMED_SUFFIX)):
            path.unlink(missing_ok=True)
