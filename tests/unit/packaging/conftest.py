"""A small finished run."""

from pathlib import Path

import pytest
from helpers.finished_run import Run, make_sample


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three chunks with seven samples, one of them failed (the third of the first chunk); the last chunk is empty."""
    first = [make_sample(seed, 3 + seed, failed=seed == 2) for seed in range(4)]
    second = [make_sample(seed, 3 + seed) for seed in range(4, 7)]
    return Run(tmp_path, [first, second, []]).write()
