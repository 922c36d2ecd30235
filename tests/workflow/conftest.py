"""The workflow with a fake ``hidden-states``."""

import sys
from pathlib import Path

import pytest
from helpers.snakemake_run import Workflow


@pytest.fixture
def workflow(repository: Path, tmp_path: Path) -> Workflow:
    """Real Snakemake, with a fake ``hidden-states`` that only makes files."""
    tools = tmp_path / "tools"
    tools.mkdir()
    fake = tools / "hidden-states"
    # A real verb names its interpreter too, so it runs whatever python3 comes first on PATH.
    script = (Path(__file__).parent / "fake_hidden_states.py").read_text()
    fake.write_text(f"#!{sys.executable}\n{script}")
    fake.chmod(0o755)
    (tmp_path / "run").mkdir()
    return Workflow(repository, tmp_path / "run", tools)
