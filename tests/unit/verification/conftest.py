"""Captured prompts of the demo model."""

from pathlib import Path

import pytest
from helpers.captured import capture
from helpers.finished_run import Run, make_sample
from hidden_states.verification.samples import CapturedSample


@pytest.fixture(scope="session")
def samples(demo_model: Path) -> list[CapturedSample]:
    """Not to be changed by a test."""
    return capture(demo_model)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three chunks with seven samples, one of them failed (the third of the first chunk); the last chunk is empty."""
    first = [make_sample(seed, 3 + seed, failed=seed == 2) for seed in range(4)]
    second = [make_sample(seed, 3 + seed) for seed in range(4, 7)]
    return Run(tmp_path, [first, second, []]).write()
