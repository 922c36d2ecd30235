"""Runs that meet in a directory or on the devices, and what dead ones left in the folder of the locks."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest
from datasets import load_from_disk
from helpers.fault_run import assert_totals_add_up, schedulers, wait_until
from helpers.file_systems import read_only
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from hidden_states.server.processes import is_running, start_time
from hidden_states.server.record import READY, Record, write_record
from hidden_states.server.slots import Slot, all_slots
from safetensors import safe_open

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

START_SECONDS = 300
"""Enough for a server to start beside others on few cores."""


def slot_of(run: Workflow, monkeypatch: pytest.MonkeyPatch) -> Slot:
    monkeypatch.setenv("HIDDEN_STATES_SLOT_DIR", run.environment["HIDDEN_STATES_SLOT_DIR"])
    return all_slots("cpu", 1, 1)[0]


def messages(run: Workflow) -> str:
    """What the steps that use the server said."""
    return "".join(path.read_text() for path in sorted(run.folder.glob("logs/**/*.log")))


def fingerprints(run: Workflow) -> set[str]:
    """Of the states that the chunks' manifests name."""
    tables = [pyarrow.parquet.read_table(path) for path in run.folder.glob("results/chunks/*/manifest.parquet")]
    return {name for table in tables for name in table.column("fingerprint").to_pylist()}


def assert_dataset_has_layers(run: Workflow, layers: str) -> None:
    dataset = run.folder / "results" / "dataset" / "speculators"
    files = sorted((dataset / "hidden_states").iterdir())
    assert len(files) == len(load_from_disk(str(dataset)))
    for file in files:
        with safe_open(file, framework="numpy") as content:
            assert content.metadata()["layers"] == layers


def test_a_second_run_in_the_directory_is_refused_and_the_first_goes_on(run: Workflow, undisturbed: Path) -> None:
    first = run.start("all")
    lock = run.folder / "results" / ".lock"
    wait_until(lambda: lock.is_file() and str(first.pid) in lock.read_text(), 60, "the first run holds the lock")
    for target in ("all", "verify"):
        code, output = run.run(target)
        assert code != 0 and "Traceback" not in output
        assert f"`snakemake` (process {first.pid}) is at work in {run.folder / 'results'}" in output
    output, _ = first.communicate(timeout=600)
    assert first.returncode == 0, output
    assert_survived(run, undisturbed, {}, "a second run in the directory")


def test_two_directories_take_turns_on_the_devices(
    run: Workflow, another_run: Callable[[str], Workflow], undisturbed: Path, tmp_path: Path
) -> None:
    """The second waits until the first lets go of its server, stops it, and starts its own."""
    second = another_run("second")
    run.config["extraction"] = second.config["extraction"] = {"chunks": 1}
    most = 0
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(run.run, "all")
        wait_until(lambda: schedulers(tmp_path / "slots") or one.done(), START_SECONDS, "a server starts")
        two = pool.submit(second.run, "all")
        while not (one.done() and two.done()):
            most = max(most, len(schedulers(tmp_path / "slots")))
            time.sleep(0.2)
    for code, output in (one.result(), two.result()):
        assert code == 0, output
    assert most == 1, "two servers shared the devices"
    said = messages(second)
    assert f"in {run.folder}" in said and "waiting for a server" in said
    assert f"stopping the server of {run.folder / 'results'}" in said
    assert_survived(run, undisturbed, {}, "two directories on one slot, the first")
    assert_survived(second, undisturbed, {}, "two directories on one slot, the second")


def test_other_layers_in_the_same_directory_replace_a_server_that_lingers(
    run: Workflow, undisturbed: Path, tmp_path: Path
) -> None:
    """A killed run leaves its server behind; the next one asks for other layers; then the first settings again."""
    run.config["extraction"] = {"chunks": 2, "concurrency": 1}
    killed = run.start("all")
    wait_until(lambda: published(run) or killed.poll() is not None, START_SECONDS, "a state is published")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    before = published(run)
    (lingering,) = schedulers(tmp_path / "slots")
    run.config["capture"] = {"layers": [3, 6]}
    code, output = run.run("all")
    assert code == 0, output
    assert not lingering.is_running()
    assert "stopping the server of" in messages(run)
    assert_dataset_has_layers(run, "3,6")
    assert_totals_add_up(run)
    (other,) = fingerprints(run)
    del run.config["capture"]
    code, output = run.run("all")
    assert code == 0, output
    assert_dataset_has_layers(run, "2,4,5")
    assert fingerprints(run).isdisjoint({other})
    assert_survived(run, undisturbed, before, "other layers in between")


def test_what_dead_runs_left_is_not_mistaken_for_a_server(
    run: Workflow, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record whose pids belong to a stranger by now, and locks that name a process that is gone."""
    slot = slot_of(run, monkeypatch)
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    try:
        started = start_time(stranger.pid)
        record = Record(READY, "0" * 16, "0" * 32, str(run.folder / "results"), list(slot.devices), "", "", "hs-old-")
        record.keeper_pid, record.keeper_start = stranger.pid, started - 1
        record.server_pid, record.server_start = stranger.pid, started - 1
        write_record(slot.record, record)
        for file in (*slot.lease_files, *slot.keeper_files):
            file.write_text(f"pid {gone.pid} in {run.folder}")
        code, output = run.run("all")
        assert code == 0, output
        assert is_running(stranger.pid, started), "a process that has nothing to do with us was ended"
    finally:
        stranger.kill()
        stranger.wait()
    assert_survived(run, undisturbed, {}, "a stale lease")


@contextmanager
def a_file_in_its_place(folder: Path) -> Iterator[None]:
    folder.rmdir()
    folder.write_text("not a folder")
    yield
    folder.unlink()
    folder.mkdir()


@pytest.mark.parametrize(
    ("fault", "words"), [(a_file_in_its_place, "cannot be made"), (read_only, "cannot be written to")]
)
def test_a_folder_for_locks_that_cannot_be_used_is_named(run: Workflow, tmp_path: Path, fault, words: str) -> None:
    slots = tmp_path / "slots"
    with fault(slots):
        code, output = run.run("results/server/ready.json")
    assert code != 0 and "Traceback" not in output
    assert f"the folder {slots}, which holds the locks of the servers on this host, {words}" in output
    assert "set HIDDEN_STATES_SLOT_DIR to a folder of yours on a local disk" in output
