"""``hidden-states verify`` and ``verify-chunk`` from the command line."""

import json
import os
from pathlib import Path

import pytest
import yaml
from helpers.finished_run import Run
from hidden_states.cli import main
from hidden_states.layout import chunk_name
from hidden_states.run_lock import RUN_PID, RunLock


@pytest.fixture
def options(run: Run, tmp_path: Path) -> list[str]:
    """The model has no weights: verify has to go on without knowing the fingerprint of the configuration."""
    config = {"model": {"path": str(run.model)}, "conversations": {"files": ["x.jsonl"]}, "extraction": {"chunks": 3}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    return ["--configfile", str(tmp_path / "my.yaml"), "--results", str(run.results.root)]


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_PID, str(os.getpid()))


@pytest.fixture
def done(run: Run, options: list[str]) -> Run:
    for index in range(3):
        assert main(["verify-chunk", "--chunk", chunk_name(index), *options]) == 0
    run.package()
    return run


def test_verify_says_what_is_there_and_how_to_retry_failed_samples(done: Run, options, in_a_run, capsys):
    assert main(["verify", *options, "--repeat-options", "--directory x"]) == 0
    output = capsys.readouterr().out
    assert "6 states of" in output
    assert "1 samples failed" in output
    assert f"snakemake --cores 8 all --directory x -R {done.results.manifest('0000')}" in output
    assert output.endswith("everything is in order\n")


def test_verify_fails_with_a_list_and_the_command_for_repair(done: Run, options, in_a_run, caplog):
    path = done.state_path(done.key(4))
    path.unlink()
    assert main(["verify", *options, "--repeat-options=--configfile my.yaml"]) == 1
    assert f"{path}: missing" in caplog.text
    assert "in all: 1 damaged or missing states" in caplog.text
    assert "to repair it: snakemake --cores 8 all --configfile my.yaml" in caplog.text
    assert list(json.loads(done.results.ticket("0001").read_text())["keys"]) == [done.key(4)]


def test_verify_of_nothing_says_so(options, run: Run, in_a_run, caplog):
    assert main(["verify", *options[:-1], str(run.root / "elsewhere")]) == 1
    assert "nothing to verify yet. Run: snakemake --cores 8 all" in caplog.text
    assert not (run.root / "elsewhere").exists()


def test_verify_by_hand_is_refused_while_a_run_is_active(done: Run, options, monkeypatch, caplog):
    monkeypatch.delenv(RUN_PID, raising=False)
    lock = RunLock(done.results)
    lock.take("a run")
    monkeypatch.delenv(RUN_PID)
    assert main(["verify", *options]) == 1
    assert "refused: a run" in caplog.text


def test_a_chunk_that_does_not_fit_fails_the_gate(done: Run, options, caplog):
    done.state_path(done.key(0)).unlink()
    assert main(["verify-chunk", "--chunk", "0000", *options]) == 1
    assert "chunk 0000, sample 0: state file" in caplog.text
