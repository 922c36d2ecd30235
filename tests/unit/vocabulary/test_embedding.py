"""How many ids a model knows: config and weights must agree."""

from pathlib import Path

import pytest
from helpers.tiny_tokenizer import save_model
from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.vocabulary.embedding import embedding_rows


@pytest.mark.parametrize("rows", [410, 512])
def test_padding_rows_are_no_ids(tmp_path: Path, rows: int) -> None:
    assert embedding_rows(Checkpoint(save_model(tmp_path, rows=rows))) == 410


def test_fewer_rows_than_the_config_promises_are_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 400 rows, but config.json says vocab_size 410"):
        embedding_rows(Checkpoint(save_model(tmp_path, rows=400)))


def test_an_embedding_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    config = (folder / "config.json").read_text().replace('"hidden_size": 8', '"hidden_size": 16')
    (folder / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"\[410, 8\].*promises \[410, 16\]"):
        embedding_rows(Checkpoint(folder))
