"""Slots, keeper and lease, with a stub in place of SGLang."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.server import lease as lease_module
from hidden_states.server.lease import lease, stop_servers
from hidden_states.server.processes import group_members, is_running
from hidden_states.server.record import read_record
from hidden_states.server.slots import acquire, all_slots, is_locked
from hidden_states.server.specification import build


@contextlib.contextmanager
def leased(settings, results: Results, longest: int = 10):
    with lease(settings, results, build(settings, results), longest) as server:
        yield server


def wait_until(what: Callable[[], bool], seconds: float = 15) -> float:
    start = time.monotonic()
    while not what():
        assert time.monotonic() - start < seconds, "it did not happen"
        time.sleep(0.05)
    return time.monotonic() - start


def record_of(settings, results):
    return read_record(all_slots("cpu", 1, 1)[0].record)


def test_a_second_client_is_given_the_warm_server(stub, results):
    settings = stub()
    with leased(settings, results) as first:
        assert first.alive()
        assert first.max_req_input_len == 1000
        pid, prefix = first.get("/server_info")["pid"], first.rid_prefix
    with leased(settings, results) as second:
        assert (second.get("/server_info")["pid"], second.rid_prefix) == (pid, prefix)


def test_an_unused_server_is_stopped_after_the_linger_time_with_all_its_processes(stub, results):
    settings = stub(linger_seconds=1)
    with leased(settings, results):
        record = record_of(settings, results)
        time.sleep(2)
        assert is_running(record.server_pid, record.server_start), "it was stopped while it was leased"
    wait_until(lambda: not is_running(record.keeper_pid, record.keeper_start), 8)
    assert group_members(record.server_pid, record.server_start) == []
    assert "nobody used it" in record_of(settings, results).reason


def test_a_killed_keeper_takes_the_server_along_and_the_next_client_ends_what_is_left(stub, results):
    settings = stub()
    with leased(settings, results):
        record = record_of(settings, results)
    os.kill(record.keeper_pid, signal.SIGKILL)
    wait_until(lambda: not is_running(record.server_pid, record.server_start))
    assert group_members(record.server_pid, record.server_start), "the stub's child should outlive it here"
    with leased(settings, results) as server:
        assert server.rid_prefix != record.rid_prefix
        assert group_members(record.server_pid, record.server_start) == []


def test_a_dead_server_is_noticed_explained_and_replaced(stub, results):
    settings = stub()
    with leased(settings, results) as server:
        old = server.rid_prefix
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{server.url}/die", timeout=5)
        wait_until(lambda: not server.alive())
        why = server.why_died()
        assert "exit code 7" in why and "told to die" in why
        server.restart()
        assert server.alive() and server.rid_prefix != old


def test_a_hung_server_is_replaced(stub, results):
    settings = stub()
    with leased(settings, results) as server:
        record = record_of(settings, results)
        os.kill(record.server_pid, signal.SIGSTOP)
        server.restart()
        assert server.alive()
        assert group_members(record.server_pid, record.server_start) == []


def test_a_server_that_hung_between_two_clients_is_replaced(stub, results, monkeypatch):
    monkeypatch.setattr(lease_module, "ANSWER_SEC", 1)
    settings = stub()
    with leased(settings, results):
        record = record_of(settings, results)
        os.kill(record.server_pid, signal.SIGSTOP)
    with leased(settings, results) as server:
        assert server.rid_prefix != record.rid_prefix
        assert group_members(record.server_pid, record.server_start) == []


@pytest.mark.parametrize("change", ["specification", "run"])
def test_a_warm_server_of_other_settings_or_another_run_is_stopped_first(stub, results, tmp_path, change, monkeypatch):
    monkeypatch.setattr(lease_module, "PATIENCE_SEC", 0)
    settings = stub()
    with leased(settings, results):
        record = record_of(settings, results)
    other = results
    if change == "specification":
        settings["capture"]["layers"] = [1, 2]
    else:
        other = Results(tmp_path / "other" / "results")
    try:
        with leased(settings, other):
            assert group_members(record.server_pid, record.server_start) == []
    finally:
        stop_servers(other)


def test_a_server_between_two_chunks_of_another_run_is_left_to_it(stub, results, tmp_path, monkeypatch):
    """Otherwise two runs would take the devices from each other after every chunk, with a start each time."""
    monkeypatch.setattr(lease_module, "PATIENCE_SEC", 2)
    settings, other, taken = stub(), Results(tmp_path / "other" / "results"), []

    def work_for_the_other() -> None:
        with leased(settings, other):
            taken.append(time.monotonic())

    with leased(settings, results) as server:
        prefix = server.rid_prefix
        waiting = threading.Thread(target=work_for_the_other)
        waiting.start()
    try:
        time.sleep(1)
        with leased(settings, results) as server:
            assert server.rid_prefix == prefix
            time.sleep(1.5)
        released = time.monotonic()
        waiting.join(30)
        assert taken[0] - released > 1.9
    finally:
        waiting.join(30)
        stop_servers(other)


def test_stop_servers_stops_the_servers_of_this_run_alone(stub, results, tmp_path):
    settings = stub()
    with leased(settings, results):
        record = record_of(settings, results)
    assert stop_servers(Results(tmp_path / "other")) == 0
    assert is_running(record.server_pid, record.server_start)
    assert stop_servers(results) == 1
    assert group_members(record.server_pid, record.server_start) == []
    assert stop_servers(results) == 0


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("dying", "cannot allocate memory"),
        ("refusing", "no layer 99"),
        ("silent", "did not announce itself"),
        ("slow", "server.startup_timeout_seconds"),
    ],
)
def test_a_server_that_does_not_come_up_is_refused_with_its_own_words(stub, results, mode, words, monkeypatch):
    settings = stub(mode, startup_timeout_seconds=2 if mode == "slow" else 30)
    with pytest.raises(UserError, match=words) as raised, leased(settings, results):
        pass
    assert "sglang.log" in str(raised.value)
    record = record_of(settings, results)
    wait_until(lambda: not is_running(record.keeper_pid, record.keeper_start))
    assert group_members(record.server_pid, record.server_start) == []


def test_a_launcher_that_does_not_exist_is_named(stub, results):
    settings = stub(launcher="no-such-launcher")
    with pytest.raises(UserError, match="no-such-launcher"):
        build(settings, results)


def test_a_server_that_is_not_the_one_of_ready_json_is_refused(stub, results):
    settings = stub()
    with leased(settings, results) as server:
        write_json(results.ready, server.ready | {"layers_read_back": [2, 4, 6]})
    with pytest.raises(UserError, match=r"layers_read_back is \[2, 4, 5\], was \[2, 4, 6\]"), leased(settings, results):
        pass


def test_prompts_that_the_server_does_not_take_are_refused(stub, results):
    settings = stub()
    with pytest.raises(UserError, match=r"conversations\.max_tokens to 999"), leased(settings, results, longest=1000):
        pass


def test_the_key_is_in_no_log_and_on_no_command_line(stub, results):
    settings = stub()
    with leased(settings, results):
        record = record_of(settings, results)
        log = Path(record.log)
        wait_until(lambda: "server_args" in log.read_text())
        assert record.api_key not in log.read_text()
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        for pid in (record.keeper_pid, record.server_pid):
            assert record.api_key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert record.api_key.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_each_start_has_another_key_and_another_prefix(stub, results):
    settings = stub()
    with leased(settings, results) as server:
        first = record_of(settings, results)
        server.restart()
        second = record_of(settings, results)
    assert min(len(first.api_key), len(second.api_key)) >= 32
    assert first.api_key != second.api_key and first.rid_prefix != second.rid_prefix


def test_a_proxy_of_the_environment_is_not_asked(stub, results, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    settings = stub(startup_timeout_seconds=10)
    with leased(settings, results) as server:
        assert server.alive()


def test_the_dump_directory_is_clean_and_private_at_each_start(stub, results):
    settings = stub()
    with leased(settings, results) as server:
        (server.dump / "left.safetensors.tmp").write_text("x")
        server.restart()
        assert [file.name for file in server.dump.iterdir()] == ["capture.json"]
        assert stat.S_IMODE(server.dump.stat().st_mode) == 0o700


def test_two_slots_have_two_servers_that_do_not_share_a_dump_directory(stub, results):
    settings = stub(slots=2)
    with leased(settings, results) as one, leased(settings, results) as two:
        assert one.url != two.url
        assert one.alive() and two.alive()
        assert one.dump != two.dump
        assert (one.dump / "capture.json").exists() and (two.dump / "capture.json").exists()


def test_a_waiting_client_is_told_who_holds_the_slot_and_gets_it_afterwards(stub, caplog):
    slots = all_slots("cpu", 1, 1)
    program = (
        "import time\nfrom hidden_states.server.slots import *\n"
        "with acquire(all_slots('cpu', 1, 1)): print('held', flush=True); time.sleep(3.5)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with caplog.at_level("INFO"), acquire(slots):
            assert is_locked(slots[0].lease_files)
        assert f"cpu-0 held by pid {holder.pid}" in caplog.text


def test_the_lock_of_a_killed_client_is_free(stub):
    program = (
        "import time\nfrom hidden_states.server.slots import *\n"
        "with acquire(all_slots('cpu', 1, 1)): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        holder.kill()
        with acquire(all_slots("cpu", 1, 1)):
            pass


def test_a_slot_folder_that_others_can_write_to_is_refused(stub, tmp_path):
    all_slots("cpu", 1, 1)
    (tmp_path / "slots").chmod(0o777)
    with pytest.raises(UserError, match="chmod 700"):
        all_slots("cpu", 1, 1)
    (tmp_path / "slots").chmod(0o700)


def test_a_port_that_is_taken_meanwhile_is_replaced_by_another(stub, results, monkeypatch):
    """The keeper is told a taken port once, by a module that stands before the real one in its process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        patch = (
            "import hidden_states.server.keeper as k, sys; from pathlib import Path; real = k._free_port; "
            f"ports = iter([{port}]); k._free_port = lambda: next(ports, None) or real(); "
            "k.Keeper(k.Start.read(Path(sys.argv[-1]))).run()"
        )
        original = subprocess.Popen

        def start(command, **options):
            if "hidden_states.server.keeper" in command:
                command = [sys.executable, "-c", patch, command[-1]]
            return original(command, **options)

        monkeypatch.setattr(lease_module.subprocess, "Popen", start)
        settings = stub()
        with leased(settings, results) as server:
            assert not server.url.endswith(f":{port}")
