"""The server is killed, hangs, never gets healthy or dies at its start: the run goes on, or says why it cannot."""

import json
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from helpers.fault_run import schedulers, server_processes, wait_until
from helpers.impatient import make_impatient
from helpers.planted_faults import write_plugin
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from hidden_states.extraction.journal import read_journal

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(3600)]

START_SECONDS = 900
"""Enough for a server to start beside others on few cores."""
KILLS = 3
BETWEEN = 4
"""States published between two kills: one that had the sample alone which was in hand at the last one would be a sample
that killed the server twice."""
SILENCE = 30.0
"""Seconds without an answer after which the server of these tests is taken to hang; a prompt takes far less."""

HANGS = """
import time

def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    target = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    HookRegistry.register(target, lambda *arguments, **named: time.sleep(3600), HookType.BEFORE)
"""
DIES = """
def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    target = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    HookRegistry.register(target, die, HookType.BEFORE)

def die(*arguments, **named):
    raise RuntimeError("planted: the weights are not to be had")
"""


def restarts(run: Workflow) -> int:
    """Restarts of the server that the journals of all chunks tell of."""
    journals = sorted(run.folder.glob("results/chunks/*/journal.jsonl"))
    return sum(line["server_restarts"] for path in journals for line in read_journal(path)[1])


def send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        process.send_signal(number)


def one_at_a_time(run: Workflow) -> None:
    """One sample after another in one chunk, so that every moment in between is in the middle of the chunk."""
    run.config["extraction"] = {"chunks": 1, "concurrency": 1}


def test_a_server_killed_again_and_again_costs_no_sample(run: Workflow, undisturbed: Path, tmp_path: Path) -> None:
    one_at_a_time(run)
    process = run.start("all")
    before: dict[str, tuple[int, int]] = {}
    for _ in range(KILLS):
        known = len(before)
        wait_until(
            lambda: len(published(run)) >= known + BETWEEN or process.poll() is not None,  # noqa: B023
            START_SECONDS,
            f"{BETWEEN} more states",
        )
        victims = schedulers(tmp_path / "slots")
        assert victims, process.communicate()[0]
        send(victims, signal.SIGKILL)
        time.sleep(0.2)  # what was on its way is published
        before = published(run)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert restarts(run) == KILLS
    assert "signal SIGKILL" in output or "exit code" in output, output
    assert_survived(run, undisturbed, before, f"server killed {KILLS} times")


def test_a_server_that_hangs_is_replaced_in_bounded_time(run: Workflow, undisturbed: Path, tmp_path: Path) -> None:
    one_at_a_time(run)
    make_impatient(run, tmp_path / "tools", SILENCE)
    process = run.start("all")
    wait_until(lambda: published(run) or process.poll() is not None, START_SECONDS, "a state is published")
    stopped = schedulers(tmp_path / "slots")
    assert stopped, process.communicate()[0]
    send(stopped, signal.SIGSTOP)
    since = time.monotonic()
    before = published(run)
    wait_until(lambda: not any(one.is_running() for one in stopped), SILENCE + 60, "the stopped server is ended")
    print(f"a server that hung was ended after {time.monotonic() - since:.0f} s")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert "it runs, but answered nothing for" in output
    assert restarts(run) == 1
    assert_survived(run, undisturbed, before, "server stopped")


@pytest.mark.parametrize(
    ("plugin", "timeout", "words"),
    [
        (HANGS, 30, ["it was not healthy after 30 s (config key server.startup_timeout_seconds)"]),
        (DIES, 300, ["before it was healthy", "RuntimeError: planted: the weights are not to be had"]),
    ],
    ids=["never healthy", "dies at its start"],
)
def test_a_server_that_does_not_come_up_is_explained(
    run: Workflow, undisturbed: Path, tmp_path: Path, plugin: str, timeout: float, words: list[str]
) -> None:
    folder = write_plugin(tmp_path / "plugin", "planted_start", plugin)
    run.config["server"]["startup_timeout_seconds"] = timeout
    code, output = run.run("all", PYTHONPATH=str(folder))
    assert code == 1 and "Traceback (most recent call last)" not in _without_quotes(output), output
    # Snakemake shows what a failed job printed, and then its log again.
    log = (run.folder / "logs" / "start_server.log").read_text()
    assert log.count("error: the server did not come up") == 1
    for word in words:
        assert word in output
    assert "run `snakemake --cores 8 all` again" in output
    assert not server_processes(tmp_path / "slots"), "what was started is gone"
    run.config["server"]["startup_timeout_seconds"] = 600
    code, output = run.run("all")
    assert code == 0, output
    assert_survived(run, undisturbed, {}, f"server: {words[0]}")


def test_a_model_that_sglang_cannot_load_is_explained_in_its_words(
    run: Workflow, undisturbed: Path, tmp_path: Path, demo_model: Path
) -> None:
    """An architecture that it does not know; then the model is put right."""
    model = shutil.copytree(demo_model, tmp_path / "model")
    right = (model / "config.json").read_text()
    (model / "config.json").write_text(json.dumps(json.loads(right) | {"architectures": ["NoSuchForCausalLM"]}))
    run.config["model"] = {"path": str(model)}
    code, output = run.run("all")
    assert code == 1 and "the server did not come up" in output, output
    assert "NoSuchForCausalLM" in output
    assert not server_processes(tmp_path / "slots"), "what was started is gone"
    (model / "config.json").write_text(right)
    code, output = run.run("all")
    assert code == 0, output
    assert_survived(run, undisturbed, {}, "a model that cannot be loaded")


def _without_quotes(output: str) -> str:
    """Without the lines of the server's log that a message quotes."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("  | "))
