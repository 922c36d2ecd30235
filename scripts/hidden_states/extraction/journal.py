"""``chunks/{chunk}/journal.jsonl``: what happened to each sample, written as it happens; survives a kill.

A sample's line: key, seconds, tokens, bytes, time, published, attempts, reason (null when it is in the store), run_id
(of Snakemake's run; empty by hand).
A run's line: ``{"run": {…}}`` with counts and rates, for the report. Lines are appended and never changed; the last
one of a key counts.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any


class Journal:
    """Appends lines; each is handed to the kernel at once, so killing the process loses none."""

    def __init__(self, path: Path, run_id: str = "") -> None:
        self._run_id = run_id
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        self._end_torn_line()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def sample(
        self,
        key: str,
        tokens: int,
        attempts: int,
        seconds: float | None = None,
        num_bytes: int = 0,
        published: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._append(
            {
                "key": key,
                "seconds": seconds,
                "tokens": tokens,
                "bytes": num_bytes,
                "time": _now(),
                "published": published,
                "attempts": attempts,
                "reason": reason,
                "run_id": self._run_id,
            }
        )

    def run(self, **figures: Any) -> None:
        self._append({"run": {"time": _now(), **figures}})

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _end_torn_line(self) -> None:
        """After a power cut the last line may be half there; it must not swallow the next one."""
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")


def read_journal(path: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The last line of each key, and every run, in order. Lines that cannot be read are passed over."""
    samples: dict[str, dict[str, Any]] = {}
    runs: list[dict[str, Any]] = []
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
    except FileNotFoundError:
        return samples, runs
    with file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if not isinstance(line, dict):
                continue
            if isinstance(line.get("run"), dict):
                runs.append(line["run"])
            elif isinstance(line.get("key"), str):
                samples[line["key"]] = line
    return samples, runs


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
