"""The keeper as a process of its own, with a small HTTP server in place of SGLang."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.file_systems import small_file_system
from hidden_states.server.keeper import Start
from hidden_states.server.processes import end_group, end_process, group_members, is_running, start_time
from hidden_states.server.record import FAILED, READY, STARTING, STOPPED, Record, read_record
from hidden_states.server.slots import try_lock

KEY = "a-key-that-nobody-may-see"
SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

mode, config = sys.argv[1], json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
dump = Path(os.environ["SGLANG_HS_DUMP_DIR"])
print("server_args: api_key =", config["api-key"], flush=True)
if mode == "dying":
    sys.exit("the stub has no memory")
if mode == "slow":
    time.sleep(300)
if mode == "refusing":
    (dump / "capture.error.json").write_text(json.dumps({"reason": "X", "detail": "no hook for Stub"}))
if mode == "good":
    (dump / "sockets").touch()
    (dump / "hs-0001-left.safetensors").touch()
    (dump / "capture.json").write_text("{}")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if mode == "babbling":
            self.wfile.write(b"no answer in HTTP\\r\\n\\r\\n")
            return
        known = self.headers["Authorization"] == "Bearer " + config["api-key"]
        self.send_response(200 if known and self.path == "/health" else 401)
        self.end_headers()

    def log_message(self, *words):
        pass


HTTPServer(("127.0.0.1", config["port"]), Handler).serve_forever()
"""


class Run:
    """One keeper; its slot is held by the test while ``hold`` is true."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dump, self.log, self.config = folder / "dump", folder / "sglang.log", folder / "config.yaml"
        self.record_file, self.start_file = folder / "slot.json", folder / "slot.start.json"
        self.lease, self.keeper_lock = folder / "cpu-0.lease", folder / "cpu-0.keeper"
        self.keeper: subprocess.Popen | None = None
        self.held = contextlib.ExitStack()

    def start(self, mode: str = "good", **changes: float) -> None:
        assert try_lock(self.held, [self.lease], note="the test")
        (self.folder / "server.py").write_text(SERVER)
        start = Start(
            record=Record(STARTING, "id", "hash", "run", ["cpu-0"], str(self.dump), str(self.log), "hs-", api_key=KEY),
            record_file=str(self.record_file),
            config_file=str(self.config),
            lease_files=[str(self.lease)],
            keeper_files=[str(self.keeper_lock)],
            command=[sys.executable, str(self.folder / "server.py"), mode],
            environment=dict(os.environ) | {"SGLANG_HS_DUMP_DIR": str(self.dump)},
            **{"startup_timeout_seconds": 20, "linger_seconds": 30} | changes,
        )
        start.write(self.start_file)
        with open(self.folder / "keeper.log", "w") as output:
            self.keeper = subprocess.Popen(
                [sys.executable, "-m", "hidden_states.server.keeper", str(self.start_file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.keeper_start = start_time(self.keeper.pid)

    @property
    def record(self) -> Record | None:
        return read_record(self.record_file)

    def become(self, state: str, seconds: float = 10) -> Record:
        wait_until(lambda: self.record is not None and self.record.state == state, seconds, self.explain)
        return self.record

    def ended(self, seconds: float = 10) -> None:
        """Wait for the keeper to end; its server must be gone then."""
        self.keeper.wait(seconds)
        record = self.record
        assert not is_running(record.server_pid, record.server_start)
        assert not record.server_pid or group_members(record.server_pid, record.server_start) == []
        assert not self.config.exists()

    def explain(self) -> str:
        return f"{self.record}\n{(self.folder / 'keeper.log').read_text()}"

    def close(self) -> None:
        self.held.close()
        if self.keeper is not None:
            end_process(self.keeper.pid, self.keeper_start, 5)
            self.keeper.wait(5)
        if (record := self.record) is not None:
            end_group(record.server_pid, record.server_start, term_sec=0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


def wait_until(what: Callable[[], bool], seconds: float, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"it did not happen: {explain()}"
        time.sleep(0.05)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def command_lines() -> bytes:
    """Of all processes of this host."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes())
    return b"\n".join(found)


def test_the_server_becomes_ready_in_a_clean_private_folder_and_keeps_its_key(run):
    run.dump.mkdir(mode=0o755)
    (run.dump / "capture.error.json").write_text('{"detail": "an old one"}')
    (run.dump / "sub").mkdir()
    before = os.umask(0)  # files must not be private by the umask alone
    try:
        run.start()
    finally:
        os.umask(before)
    record = run.become(READY)
    assert (record.keeper_pid, record.keeper_start) == (run.keeper.pid, run.keeper_start)
    assert is_running(record.server_pid, record.server_start)
    assert sorted(path.name for path in run.dump.iterdir()) == ["capture.json", "hs-0001-left.safetensors", "sockets"]
    assert mode_of(run.dump / "sockets") == 0o600, "whatever the server makes, also outside, is the user's alone"
    assert mode_of(run.dump) == 0o700
    assert [mode_of(path) for path in (run.log, run.record_file, run.start_file)] == [0o600] * 3
    wait_until(lambda: "server_args" in run.log.read_text(), 5)
    assert "api_key = <key>" in run.log.read_text()
    assert KEY not in run.log.read_text() + (run.folder / "keeper.log").read_text()
    assert KEY.encode() not in command_lines()
    assert str(run.start_file).encode() in command_lines(), "the command lines were not read"
    assert not run.config.exists(), "it is not needed any more"


def test_the_configuration_of_a_starting_server_is_private(run):
    before = os.umask(0)
    try:
        run.start("slow")
    finally:
        os.umask(before)
    run.become(STARTING)
    assert mode_of(run.config) == 0o600
    assert json.loads(run.config.read_text())["api-key"] == KEY
    assert KEY.encode() not in command_lines()


def test_a_dump_folder_that_is_a_link_is_refused(run):
    elsewhere = run.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    run.dump.symlink_to(elsewhere)
    run.start()
    assert "is a link" in run.become(FAILED).reason
    run.ended()
    assert (elsewhere / "precious").exists()


def test_a_dump_folder_without_room_is_named_before_a_server_starts(run):
    """Such a server could not even announce its plug-in."""
    run.dump = run.dump.parent / "small" / "dump"
    with small_file_system(run.dump.parent, "32k"):
        run.start()
        assert f"no space left: the dump directory {run.dump} has room for" in run.become(FAILED).reason
        run.ended()
    assert run.record.server_pid == 0


def test_a_healthy_server_without_the_plug_in_is_refused(run):
    run.start("silent")
    assert "did not announce itself" in run.become(FAILED, 20).reason
    run.ended()


def test_the_words_of_the_plug_in_reach_the_record(run):
    run.start("refusing")
    assert run.become(FAILED).reason == "the capture plug-in refuses: no hook for Stub"
    run.ended()


def test_a_server_that_dies_at_its_start_is_explained_by_its_log(run):
    run.start("dying")
    record = run.become(FAILED)
    assert "exit code 1" in record.reason
    assert record.log_tail[-1] == "the stub has no memory"
    assert KEY not in "".join(record.log_tail)
    run.ended()


def test_a_server_that_dies_later_is_noticed(run):
    run.start()
    os.kill(run.become(READY).server_pid, signal.SIGKILL)
    assert run.become(FAILED).reason == "it died with signal SIGKILL"
    run.ended()


def test_a_server_that_takes_too_long_is_stopped(run):
    run.start("slow", startup_timeout_seconds=1)
    assert "not healthy after 1 s" in run.become(FAILED).reason
    run.ended()


def test_an_answer_that_is_no_http_is_not_healthy_and_no_fault_of_the_keeper(run):
    run.start("babbling", startup_timeout_seconds=3)
    assert "not healthy after 3 s" in run.become(FAILED).reason
    run.ended()


def test_a_program_that_does_not_exist_is_named(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        run.start()
    monkeypatch.undo()
    run.keeper = subprocess.Popen(
        [sys.executable, "-m", "hidden_states.server.keeper", str(run.start_file)], stderr=subprocess.DEVNULL
    )
    run.keeper_start = start_time(run.keeper.pid)
    assert "`/no/such/python` cannot be run" in run.become(FAILED).reason
    run.ended()


def test_a_server_lingers_only_when_nobody_holds_its_slot(run):
    run.start(linger_seconds=1)
    record = run.become(READY)
    time.sleep(2)
    assert is_running(record.server_pid, record.server_start), "it was stopped while it was held"
    run.held.close()
    run.ended()
    assert (run.record.state, run.record.reason) == (STOPPED, "nobody used it for 1 s")


@pytest.mark.parametrize(("mode", "state"), [("good", READY), ("slow", STARTING)])
def test_a_keeper_that_is_asked_to_end_takes_the_server_along(run, mode, state):
    run.start(mode)
    run.become(state)
    run.keeper.terminate()
    run.ended()
    assert run.record.state == STOPPED


def test_what_requests_left_goes_with_the_server(run):
    run.start()
    run.become(READY)
    assert (run.dump / "hs-0001-left.safetensors").exists()
    run.keeper.terminate()
    run.ended()
    assert sorted(path.name for path in run.dump.iterdir()) == ["capture.json", "sockets"]


def test_a_keeper_survives_the_end_of_its_terminal(run):
    run.start()
    record = run.become(READY)
    for number in (signal.SIGHUP, signal.SIGINT):
        run.keeper.send_signal(number)
    time.sleep(1)
    assert run.keeper.poll() is None
    assert is_running(record.server_pid, record.server_start)


def test_a_killed_keeper_takes_the_server_along(run):
    run.start()
    record = run.become(READY)
    run.keeper.kill()
    wait_until(lambda: not is_running(record.server_pid, record.server_start), 5)


def test_a_keeper_waits_until_its_predecessor_is_gone(run):
    with contextlib.ExitStack() as predecessor:
        assert try_lock(predecessor, [run.keeper_lock])
        run.start()
        time.sleep(1.2)
        assert run.record is None and run.keeper.poll() is None
    run.become(READY)
