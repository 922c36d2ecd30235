"""Only the tokenizer that the model's files describe is used."""

import json
from pathlib import Path

import pytest
from helpers.tiny_tokenizer import APPENDING, save_model
from hidden_states.errors import UserError
from hidden_states.vocabulary.tokenizer import load_tokenizer


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", APPENDING)


def test_a_tokenizer_that_fits_is_loaded(model: Path) -> None:
    tokenizer = load_tokenizer(model, trust_remote_code=False)
    assert tokenizer.convert_tokens_to_ids("<|end|>") == 5 and tokenizer.chat_template == APPENDING


REMOTE = """
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_code_of_the_model_that_may_not_run_is_no_reason_for_a_generic_class(model: Path) -> None:
    """A generic class gives other ids, all of them inside the vocabulary."""
    (model / "own.py").write_text(REMOTE)
    change_config(model, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})
    with pytest.raises(UserError, match="trust_remote_code: true"):
        load_tokenizer(model, trust_remote_code=False)
    assert type(load_tokenizer(model, trust_remote_code=True)).__name__ == "OwnTokenizer"


def test_a_generic_class_loaded_in_silence_is_found(model: Path) -> None:
    """transformers skips a model's own code for some model types, without an error."""
    (model / "own.py").write_text(REMOTE)
    change_config(model, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})
    config = json.loads((model / "config.json").read_text()) | {"model_type": "deepseek_v3"}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="names the tokenizer class OwnTokenizer, but .* was loaded"):
        load_tokenizer(model, trust_remote_code=False)


@pytest.mark.parametrize(
    "name", ["TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2TokenizerFast", "Qwen2Tokenizer"]
)
def test_names_of_one_class_are_accepted(model: Path, name: str) -> None:
    change_config(model, tokenizer_class=name)
    load_tokenizer(model, trust_remote_code=False)


def test_an_added_token_with_another_id_is_refused(model: Path) -> None:
    file = model / "tokenizer_config.json"
    content = json.loads(file.read_text())
    content["added_tokens_decoder"] = {"7": {"content": "<|end|>", "special": True}}
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"added token '<\|(end|assistant)\|>'"):
        load_tokenizer(model, trust_remote_code=False)


def test_a_folder_without_tokenizer_is_refused_by_name(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=f"{model}.*tokenizer cannot be loaded"):
        load_tokenizer(model, trust_remote_code=False)
