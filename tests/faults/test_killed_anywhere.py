"""Snakemake, its jobs, the keeper and all of them together, killed at random moments; each time `all` goes on."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from helpers.fault_run import kill_everything, server_processes, wait_until
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(3600)]

SEED = 311
KINDS = ("snakemake", "client", "keeper", "group")
KILLS = 20
LONGEST_PAUSE = 0.5
"""Between two kills, as a share of the time of a whole run."""
LONGEST_LOOK = 3.0
"""Seconds, at most, from the next state that is published to the kill. Starting a server takes most of a run: kills at
random moments alone hardly ever let it come to an end, so every second one waits until states are made."""


def length(undisturbed: Path) -> float:
    """Seconds from the start to the end of the run that nothing happened to."""
    results = undisturbed.parents[1]
    return (results / "report" / "run.html").stat().st_mtime - (results / "config.json").stat().st_mtime


def with_words(slots: Path, words: str) -> list[psutil.Process]:
    """Processes of the run whose command line contains ``words``."""
    found = []
    for process in server_processes(slots):
        try:
            if words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill(kind: str, run: subprocess.Popen, slots: Path) -> bool:
    """KILL what ``kind`` says, with nothing told to anybody; whether there was any."""
    if kind == "snakemake":
        run.kill()
        return True
    if kind == "group":
        os.killpg(run.pid, signal.SIGKILL)
        return True
    victims = with_words(slots, "bin/hidden-states " if kind == "client" else "hidden_states.server.keeper")
    for process in victims:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return bool(victims)


def computed_keys(journal: Path) -> list[str]:
    """The key of each state that was published, once for each time."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [line["key"] for line in lines if line.get("key") and line["reason"] is None]


class Victim:
    """A run that is killed and resumed until it is finished."""

    def __init__(self, workflow: Workflow, slots: Path, linger: float = 60) -> None:
        self.workflow, self._slots = workflow, slots
        self.workflow.config["extraction"] = {"chunks": 6, "concurrency": 2}
        self.workflow.config["server"]["linger_seconds"] = linger
        self.before: dict[str, tuple[int, int]] = {}
        self.killed: Counter[str] = Counter()
        self._log = workflow.folder / "snakemake.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        with open(self._log, "a") as output:
            return subprocess.Popen(
                self.workflow.command("all"),
                cwd=self.workflow.repository,
                env=self.workflow.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def go_on(self) -> None:
        """Plain `all` once more, if the last one has ended; what a killed job was told is no error of the product."""
        if self.process.poll() is not None:
            self.look()
            self.process = self._start()

    def kill(self, kind: str) -> bool:
        if self.process.poll() is not None or not kill(kind, self.process, self._slots):
            return False
        self.killed[kind] += 1
        if kind in ("snakemake", "group"):
            self.process.wait(60)
        self.look()
        return True

    def look(self) -> None:
        """What was published before is the same file as it was."""
        now = published(self.workflow)
        assert all(now.get(name) == mark for name, mark in self.before.items()), "a published state was touched"
        self.before = now

    def finished(self) -> bool:
        return self.process.poll() == 0

    def finish(self, undisturbed: Path) -> None:
        """To the end without a fault, once the last run has ended; then everything is right."""
        code = self.process.wait(900)
        if code != 0:
            self.go_on()
            code = self.process.wait(900)
        assert code == 0, self._log.read_text()[-8000:]
        results = self.workflow.folder / "results"
        computed = Counter(key for path in results.glob("chunks/*/journal.jsonl") for key in computed_keys(path))
        assert not [key for key, times in computed.items() if times > 1], "a state was computed twice"
        left = [str(path) for path in results.rglob("*") if ".tmp" in path.name]
        assert not left, left
        assert_survived(self.workflow, undisturbed, self.before, f"killed: {dict(self.killed)}")


def test_a_run_killed_at_random_moments_loses_nothing(
    another_run: Callable[[str], Workflow], undisturbed: Path, tmp_path: Path
) -> None:
    slots, chance, seconds = tmp_path / "slots", random.Random(SEED), length(undisturbed)
    kinds = [*KINDS] * (KILLS // len(KINDS))
    chance.shuffle(kinds)
    print(f"seed {SEED}; a run takes {seconds:.0f} s")
    runs = in_extraction = 0
    victim = None
    while kinds:
        if victim is None:
            victim = Victim(another_run(f"run{runs}"), slots)
            runs += 1
        if len(kinds) % 2:
            pause(victim, chance.uniform(0, LONGEST_PAUSE * seconds))
        else:
            known = len(victim.before)
            pause(victim, 900, lambda: len(published(victim.workflow)) > known)  # noqa: B023
            pause(victim, chance.uniform(0, LONGEST_LOOK))
        if victim.finished():
            victim.finish(undisturbed)
            victim = None
            continue
        # A kind that is not there at this moment has its turn later.
        kind = next((kind for kind in dict.fromkeys(kinds) if victim.kill(kind)), None)
        if kind:
            kinds.remove(kind)
            in_extraction += bool(victim.before)
            print(f"{kind} killed, {len(victim.before)} states published, {len(kinds)} to go", flush=True)
    if victim:
        victim.finish(undisturbed)
    print(f"{KILLS} kills in {runs} runs, {in_extraction} of them with states published")
    assert in_extraction >= KILLS // 4


def pause(victim: Victim, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
    """Wait, at most ``seconds``, while the run goes on, is started again where it ended, or is finished."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not victim.finished() and not until():
        victim.go_on()
        time.sleep(0.05)


def test_nothing_of_a_killed_run_is_left_after_the_linger_time(
    run: Workflow, undisturbed: Path, tmp_path: Path
) -> None:
    linger = 10
    victim = Victim(run, tmp_path / "slots", linger)
    wait_until(lambda: published(run) or victim.process.poll() is not None, 900, "a state is published")
    assert victim.kill("group")
    wait_until(lambda: not server_processes(tmp_path / "slots"), linger + 30, "all processes of the run are gone")
    victim.finish(undisturbed)
    kill_everything(tmp_path / "slots")
