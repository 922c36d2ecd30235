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
def results(tokenizer_of: Callable[[str | None], Any]) -> Callable[..., list[Sample] | Rejected]:
    """The samples that one row becomes with a template, or why it is none."""

    def run(template: str | None, row: Any, num_ids: int = 1000, **limits: Any) -> list[Sample] | Rejected:
        tokenizer = tokenizer_of(template)
        batches = BatchTokenizer(tokenizer, LIMITS | limits, num_ids, [tokenizer.eos_token_id])
        ((_, result),) = next(batches.results([[Row("file", 0, row, 1)]]))
        return result

    return run


@pytest.fixture
def outcome(results: Callable[..., list[Sample] | Rejected]) -> Callable[..., Sample | Rejected]:
    """The one sample that a row becomes with a template, or why it is none."""

    def run(template: str | None, row: Any, num_ids: int = 1000, **limits: int) -> Sample | Rejected:
        result = results(template, row, num_ids, **limits)
        if isinstance(result, Rejected):
            return result
        (sample,) = result
        return sample

    return run


@pytest.fixture
def masked_samples(
    tokenizer_of: Callable[[str | None], Any], results: Callable[..., Any]
) -> Callable[..., list[tuple[str, list[str]]]]:
    """The text of each sample of an accepted row, and the texts of its runs of tokens with loss."""

    def run(template: str, row: Any) -> list[tuple[str, list[str]]]:
        found = results(template, row)
        assert not isinstance(found, Rejected), found
        return [(tokenizer_of(template).decode(sample.input_ids), runs(template, sample)) for sample in found]

    def runs(template: str, sample: Sample) -> list[str]:
        runs: list[list[int]] = [[]]
        for token, has_loss in zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True):
            if has_loss:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        return [tokenizer_of(template).decode(run) for run in runs if run]

    return run


@pytest.fixture
def masked(masked_samples: Callable[..., list[tuple[str, list[str]]]]) -> Callable[..., list[str]]:
    """The texts of the runs of tokens with loss of a row that gives one sample."""

    def run(template: str, row: Any) -> list[str]:
        ((_, said),) = masked_samples(template, row)
        return said

    return run
