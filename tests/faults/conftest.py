"""Faults injected into whole runs, on the real server and the real Snakemake."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.fault_run import kill_everything, small_run
from helpers.snakemake_run import Workflow


@pytest.fixture(scope="session")
def undisturbed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``dataset/speculators`` folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    workflow = small_run(repository, folder / "run", folder / "slots")
    code, output = workflow.run("all")
    assert code == 0, output
    return workflow.folder / "results" / "dataset" / "speculators"


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Iterator[Workflow]:
    """A run of the same configuration that has not begun; nothing of it is left after the test."""
    yield small_run(repository, tmp_path / "run", tmp_path / "slots")
    kill_everything(tmp_path / "slots")


@pytest.fixture
def another_run(repository: Path, tmp_path: Path) -> Iterator[Callable[[str], Workflow]]:
    """Makes further runs by name, on the same slot as ``run``."""
    yield lambda name: small_run(repository, tmp_path / name, tmp_path / "slots")
    kill_everything(tmp_path / "slots")
