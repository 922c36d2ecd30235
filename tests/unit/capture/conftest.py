"""Recorders that write into the test's own folder."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.forwards import LAYERS, Forwards
from hidden_states.capture.settings import CaptureSettings


@pytest.fixture
def settings(tmp_path: Path) -> CaptureSettings:
    return CaptureSettings(tmp_path, "cd" * 16, LAYERS, "pre_norm", "bfloat16", "hs-", 1 << 16, 0.3)


@pytest.fixture
def forwards(settings: CaptureSettings) -> Forwards:
    return Forwards(settings)


@pytest.fixture
def make_forwards(settings: CaptureSettings) -> Callable[..., Forwards]:
    return lambda **changes: Forwards(dataclasses.replace(settings, **changes))
