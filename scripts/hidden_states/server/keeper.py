"""The process that owns the server of a slot: starts it, keeps it warm between clients, stops it.

It outlives the client that started it, and ends with the server: when no client held the slot for ``linger_seconds``,
when the server dies, or on SIGTERM. The server dies with it, even when it is killed.

    python -m hidden_states.server.keeper <slot>.start.json
"""

import contextlib
import dataclasses
import http.client
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from hidden_states.files import FULL_BYTES, free_bytes
from hidden_states.server.http import open_local
from hidden_states.server.processes import die_with_parent, end_group, start_time
from hidden_states.server.record import FAILED, READY, STARTING, STOPPED, Record, write_private, write_record
from hidden_states.server.server_log import LogCopy
from hidden_states.server.slots import try_lock

log = logging.getLogger(__name__)

POLL_SEC = 0.5
TAIL_LINES = 30
TRACE_LINES = 500
PREDECESSOR_SEC = 60
"""How long an earlier keeper of the same devices may take to end."""
ANNOUNCEMENT_SEC = 10
"""A healthy server has loaded its model, so the plug-in has announced itself, or is not there."""
PORT_ATTEMPTS = 3
PORTS = range(20000, 32768)
"""Below what Linux gives to programs that do not choose one."""


@dataclass(frozen=True)
class Start:
    """What to start, as the client wrote it down for the keeper. ``record`` is the record to begin with."""

    record: Record
    record_file: str
    config_file: str
    lease_files: list[str]
    keeper_files: list[str]
    command: list[str]
    environment: dict[str, str]
    startup_timeout_seconds: float
    linger_seconds: float

    def write(self, path: Path) -> None:
        write_private(path, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Start":
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(**content | {"record": Record(**content["record"])})


class StartFailed(Exception):
    """The server cannot be used; the message says why."""


class Keeper:
    """One server from its start to its end."""

    def __init__(self, start: Start) -> None:
        self._start, self._record = start, start.record
        self._lease_files = [Path(file) for file in start.lease_files]
        self._process: subprocess.Popen | None = None
        self._log: LogCopy | None = None
        self._ended = False
        self._last_busy = time.time()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with contextlib.ExitStack() as stack:
            deadline = time.monotonic() + PREDECESSOR_SEC
            while not self._lock_devices(stack):
                if time.monotonic() > deadline:
                    return self._note(FAILED, "another server still holds the devices of this slot")
                time.sleep(POLL_SEC)
            self._record.keeper_pid, self._record.keeper_start = os.getpid(), start_time(os.getpid())
            try:
                self._launch()
                self._keep()
            except StartFailed as error:
                self._stop()
                self._note(FAILED, str(error))
            finally:
                Path(self._start.config_file).unlink(missing_ok=True)
                self._remove_leavings()

    def _on_term(self, number: int, frame: object) -> None:
        self._ended = True

    def _lock_devices(self, stack: contextlib.ExitStack) -> bool:
        with contextlib.ExitStack() as attempt:
            if not try_lock(attempt, [Path(file) for file in self._start.keeper_files], note=f"pid {os.getpid()}"):
                return False
            stack.push(attempt.pop_all())
            return True

    def _wipe_dump(self) -> None:
        """A clean dump directory that only the user can read."""
        dump = Path(self._record.dump)
        if dump.is_symlink():
            raise StartFailed(f"{dump} is a link; it must be a folder of the run's own, or not be there")
        try:
            if dump.exists():
                shutil.rmtree(dump)
            # Whoever can write to the folder above could put another in its place.
            dump.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            dump.mkdir(mode=0o700)
        except OSError as error:
            raise StartFailed(f"the dump directory {dump} cannot be made clean: {error}") from error
        if free_bytes(dump) < FULL_BYTES:
            raise StartFailed(f"no space left: the dump directory {dump} has room for {free_bytes(dump):,} bytes")

    def _remove_leavings(self) -> None:
        """What is left of requests once the server is gone is nobody's: their clients gave up, or never were ours."""
        with contextlib.suppress(OSError):
            for path in Path(self._record.dump).glob(f"{self._record.rid_prefix}*"):
                path.unlink(missing_ok=True)

    def _launch(self) -> None:
        """Start the server and wait until it is ready, or the slot was given up meanwhile."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._wipe_dump()
            port = _free_port()
            self._record.url = f"http://127.0.0.1:{port}"
            # On a command line every user of the host could read the key.
            config = {"api-key": self._record.api_key, "port": port}
            write_private(Path(self._start.config_file), json.dumps(config))
            self._process = self._run_command()
            self._log = LogCopy(self._process.stdout.fileno(), Path(self._record.log), self._record.api_key)
            self._record.server_pid = self._process.pid
            self._record.server_start = start_time(self._process.pid)
            self._note(STARTING)
            try:
                return self._await_ready()
            except StartFailed:
                # A trace may follow the message, longer than the tail that people are shown.
                lines = log_tail(Path(self._record.log), TRACE_LINES)
                taken = any("ddress already in use" in line for line in lines)
                if not taken or attempt == PORT_ATTEMPTS:
                    raise
                self._stop()
                log.warning("port %d was taken meanwhile; trying another", port)

    def _run_command(self) -> subprocess.Popen:
        try:
            return subprocess.Popen(
                [*self._start.command, "--config", self._start.config_file],
                env=self._start.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Its processes talk through sockets in /tmp and believe whatever they read there.
                umask=0o077,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise StartFailed(f"`{self._start.command[0]}` cannot be run: {error.strerror}") from error

    def _await_ready(self) -> None:
        dump = Path(self._record.dump)
        deadline = time.monotonic() + self._start.startup_timeout_seconds
        healthy_since = 0.0
        while not self._over():
            if (code := self._process.poll()) is not None:
                raise StartFailed(f"it ended with {_exit_words(code)} before it was healthy")
            if (error := dump / "capture.error.json").is_file():
                content = json.loads(error.read_text(encoding="utf-8"))
                raise StartFailed(f"the capture plug-in refuses: {content['detail']}")
            if self._healthy():
                if (dump / "capture.json").is_file():
                    Path(self._start.config_file).unlink(missing_ok=True)  # read once, when the server starts
                    return self._note(READY)
                healthy_since = healthy_since or time.monotonic()
                if time.monotonic() - healthy_since > ANNOUNCEMENT_SEC:
                    raise StartFailed(
                        "it is healthy, but the capture plug-in did not announce itself: SGLang did not load it. Is "
                        "hidden-states installed where the server runs, and is SGLANG_PLUGINS, if set, naming "
                        "hidden_states_capture?"
                    )
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"it was not healthy after {self._start.startup_timeout_seconds:g} s (config key "
                    "server.startup_timeout_seconds)"
                )
            time.sleep(POLL_SEC)

    def _keep(self) -> None:
        """Hold the server warm until it dies or is no longer wanted."""
        while not self._over():
            if (code := self._process.poll()) is not None:
                raise StartFailed(f"it died with {_exit_words(code)}")
            time.sleep(POLL_SEC)

    def _over(self) -> bool:
        """Whether to end: asked to, or nobody held the slot for the linger time. Then the server is stopped."""
        if self._record.state == STOPPED:
            return True
        if self._ended:
            self._stop()
            self._note(STOPPED, "it was asked to end")
            return True
        with contextlib.ExitStack() as stack:
            if not try_lock(stack, self._lease_files):
                self._last_busy = time.time()
                return False
            # The lease files are written whenever they are taken, so a short lease between two looks is seen too.
            self._last_busy = max(self._last_busy, *(file.stat().st_mtime for file in self._lease_files))
            if time.time() - self._last_busy < self._start.linger_seconds:
                return False
            # The locks are kept until the server is gone, so nobody is given a server that is about to end.
            self._stop()
            self._note(STOPPED, f"nobody used it for {self._start.linger_seconds:g} s")
            return True

    def _stop(self) -> None:
        end_group(self._record.server_pid, self._record.server_start)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._log.drain()

    def _healthy(self) -> bool:
        headers = {"Authorization": f"Bearer {self._record.api_key}"}
        try:
            with open_local(urllib.request.Request(f"{self._record.url}/health", headers=headers), 5) as answer:
                return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False  # URLError is an OSError; another program on the port may speak no HTTP at all

    def _note(self, state: str, reason: str = "") -> None:
        self._record.state, self._record.reason = state, reason
        self._record.log_tail = self._tail() if state == FAILED else []
        write_record(Path(self._start.record_file), self._record)
        log.info("%s %s", state, reason)

    def _tail(self) -> list[str]:
        return log_tail(Path(self._record.log), TAIL_LINES)


def log_tail(file: Path, lines: int) -> list[str]:
    """The last lines of a log, however long it is."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, file.stat().st_size - 65536))
            return stream.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def _free_port() -> int:
    """A port that is free now, if possible none that the system gives away by itself: a start takes minutes, and those
    are taken by others meanwhile."""
    for port in random.SystemRandom().sample(PORTS, 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _exit_words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s keeper %(process)d: %(message)s")
    Keeper(Start.read(Path(sys.argv[1]))).run()
