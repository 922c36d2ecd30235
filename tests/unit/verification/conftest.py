"""Captured prompts of the demo model."""

from pathlib import Path

import pytest
from helpers.captured import capture
from hidden_states.verification.samples import CapturedSample


@pytest.fixture(scope="session")
def samples(demo_model: Path) -> list[CapturedSample]:
    """Not to be changed by a test."""
    return capture(demo_model)
