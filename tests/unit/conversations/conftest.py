"""Tiny tokenizers by template, and what a batch of rows becomes with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_tokenizer
from hidden_states.conversations.batches import BatchTokenizer, Sample
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rows import Row

LIMITS = {"max_tokens": 1000, "min_loss_tokens": 1}


@pytest.fixture(scope="session")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Any]:
    """The tiny tokenizer with a template; each is made once."""
    made: dict[str | None, Any] = {}

    def make(template: str | None) -> Any:
        if template not in made:
            folder: Path = tmp_path_factory.mktemp("tokenizer")
            made[template] = tiny_tokenizer.load(tiny_tokenizer.save_tokenizer(folder, template))
        return made[template]

    return make


@pytest.fixture
def outcome(tokenizer_of: Callable[[str | None], Any]) -> Callable[..., Sample | Rejected]:
    """What one row becomes with a template."""

    def run(template: str | None, row: Any, num_ids: int = 1000, **limits: int) -> Sample | Rejected:
        tokenizer = BatchTokenizer(tokenizer_of(template), LIMITS | limits, num_ids)
        ((_, result),) = next(tokenizer.results([[Row("file", 0, row, 1)]]))
        return result

    return run


@pytest.fixture
def masked(tokenizer_of: Callable[[str | None], Any], outcome: Callable[..., Any]) -> Callable[..., list[str]]:
    """The texts of the runs of tokens with loss of an accepted row."""

    def run(template: str, row: Any) -> list[str]:
        sample = outcome(template, row)
        assert isinstance(sample, Sample), sample
        runs: list[list[int]] = [[]]
        for token, has_loss in zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True):
            if has_loss:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        return [tokenizer_of(template).decode(run) for run in runs if run]

    return run
