"""What several tests need: the repository, and the demo model, made once."""

from pathlib import Path

import pytest
from hidden_states.demo_model import CONVERSATIONS, corpus, make_demo_model


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The folder of the tiny DeepSeek-V3-shaped model. Not to be changed by a test."""
    folder = tmp_path_factory.mktemp("demo") / "model"
    make_demo_model(folder, corpus(repository / CONVERSATIONS))
    return folder
