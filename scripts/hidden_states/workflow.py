"""What the Snakefile needs besides rules: settings, triggers, the run's lock and its end. No heavy imports."""

import hashlib
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from hidden_states import settings as configuration
from hidden_states.conversations.sources import watched_files
from hidden_states.files import canonical_json, let_no_stranger_write, write_json
from hidden_states.layout import Results, chunk_name
from hidden_states.packaging.closing import closing_lines
from hidden_states.run_lock import RUN_ID, RunLock

log = logging.getLogger("snakemake.logging")

RESULTS = Results(Path("results"))
ABSENT = "absent"


def load_settings(
    configfiles: Iterable[Path], overrides: dict[str, Any], schema: Path, demo: Path, repository: Path
) -> dict[str, Any]:
    """The settings of a run: the user's files, or the demo's where there are none, under ``--config`` values."""
    files = list(configfiles)
    if files:
        return configuration.load(files, schema, overrides)
    return configuration.load_demo(demo, schema, repository, overrides)


def conversation_files(settings: dict[str, Any]) -> list[str]:
    """The files of the conversations there are, for Snakemake to watch; tokenize says which ones are missing."""
    return watched_files(settings["conversations"]["files"])


def chunk_names(settings: dict[str, Any]) -> list[str]:
    return [chunk_name(index) for index in range(settings["extraction"]["chunks"])]


def ticket(name: str) -> list[str]:
    """The ticket of a chunk or of the dataset, once ``verify`` has written one."""
    path = RESULTS.ticket(name)
    return [str(path)] if path.is_file() else []


def token_triggers(settings: dict[str, Any]) -> str:
    """Everything in the settings that decides what tokenize writes, as one string."""
    return canonical_json(
        {
            "model": _model(settings),
            "conversations": settings["conversations"],
            "chunks": settings["extraction"]["chunks"],
        }
    )


def state_triggers(settings: dict[str, Any]) -> str:
    """Everything in the settings that decides what a state is, as one string."""
    capture = settings["capture"]
    server = settings["server"]
    return canonical_json(
        {
            "model": _model(settings),
            "capture": {key: capture[key] for key in ("layers", "final", "storage")},
            "server": {key: server[key] for key in ("device", "launcher", "arguments")},
            "sglang": None if server["launcher"] else _version("sglang"),
        }
    )


def datasets(settings: dict[str, Any]) -> list[str]:
    """The last file that packaging writes of each format, in the order of the settings."""
    return [str(RESULTS.dataset(name) / "provenance.json") for name in settings["packaging"]["formats"]]


def package_triggers(settings: dict[str, Any]) -> str:
    return canonical_json(settings["packaging"])


def _model(settings: dict[str, Any]) -> dict[str, Any]:
    model = settings["model"]
    return {**model, "stamp": None if model["path"] == configuration.DEMO else _stamp(Path(model["path"]))}


def _stamp(folder: Path) -> str:
    """A cheap mark of a local model's files, names, sizes and times; its weights may be terabytes. The demo model needs
    none: its files are inputs. A model that is not here yet has the mark ``absent``."""
    if not folder.is_dir():
        return ABSENT
    return _digest([(path.name, *_size_and_time(path)) for path in sorted(folder.iterdir()) if path.is_file()])


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest(content: Any) -> str:
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=16).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def repeat_options(configfiles: Iterable[Path], directory: Path | None) -> str:
    """The user's own --configfile and --directory, for the commands that are printed."""
    options = []
    if files := [str(file) for file in configfiles]:
        options += ["--configfile", *files]
    if directory is not None:
        options += ["--directory", str(directory)]
    return shlex.join(options)


class Run:
    """The one run of this directory: its lock, its jobs, its server."""

    def __init__(self, settings: dict[str, Any], repeat: str) -> None:
        self._settings, self._repeat = settings, repeat
        self._lock = RunLock(RESULTS)
        self._targets: set[str] = set()

    def start(self, targets: set[str]) -> None:
        """Take the lock or raise UserError; write the settings down, but not for ``verify``: it changes nothing."""
        let_no_stranger_write()
        self._targets = targets
        only_verify = targets == {"verify"}
        self._lock.take("`snakemake verify`" if only_verify else "`snakemake`")
        if not only_verify:
            write_json(RESULTS.config, self._settings)
        # Behind what is there, for `.venv/bin/snakemake` in a shell where the environment is not active.
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup a run outlives its terminal. INT counts even where it was ignored, as shells have it for what
            # a script starts in the background: whoever sends it to this process means it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _end_run)

    def end(self, success: bool) -> None:
        """Stop the server at once and say where the dataset is, or what failed. Does nothing for a run that was
        refused: the server is that of another."""
        if not self._lock.held or self._targets == {"verify"}:
            return
        subprocess.run(["hidden-states", "stop-server", "--results", str(RESULTS.root)], check=False)
        if success and "all" in self._targets:
            for name in self._settings["packaging"]["formats"]:
                print("\n".join(closing_lines(RESULTS, name, self._repeat)))
        if not success:
            from hidden_states.extraction.failed import failed_lines

            for line in failed_lines(RESULTS, chunk_names(self._settings), os.environ[RUN_ID], self._repeat):
                print(line)


def _end_run(number: int, frame: FrameType | None) -> None:
    """End the jobs, then this process as Ctrl-C would.

    Left alone, Snakemake waits for running jobs after INT and TERM, for as long as they take, and HUP leaves them
    behind.
    """
    import psutil

    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    for child in psutil.Process(os.getpid()).children(recursive=True):
        try:
            child.terminate()
        except psutil.NoSuchProcess:
            continue
    raise KeyboardInterrupt
