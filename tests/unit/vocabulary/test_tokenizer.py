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


def change_model_type(folder: Path, name: str) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": name}))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "deepseek_v3", "glm4_moe", "minimax_m2"])
@pytest.mark.parametrize(
    "name", ["LlamaTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast", "GPT2Tokenizer"]
)
def test_the_file_of_the_tokenizer_is_followed_whatever_class_is_named(model: Path, model_type: str, name: str) -> None:
    """Published models name classes that have little to do with their tokenizer, and the loader chooses others again:
    DeepSeek-R1's distilled Qwens are ``qwen2`` with LlamaTokenizerFast, its Llamas byte-level under that name."""
    from tokenizers import Tokenizer

    change_config(model, tokenizer_class=name, auto_map={"AutoProcessor": "own.Processor"})
    change_model_type(model, model_type)
    tokenizer = load_tokenizer(model, trust_remote_code=False)
    text = "<|user|>\nTwo  spaces, naïve 東京 \U0001f600,\n\n\t'tabs' <think>12345</think><|end|>"
    plain = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == plain
    assert (tokenizer.chat_template, tokenizer.eos_token_id) == (APPENDING, 5)


def test_a_class_that_goes_its_own_way_is_named(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(model, tokenizer_class="LlamaTokenizerFast")
    load_tokenizer(model, trust_remote_code=False)
    assert "LlamaTokenizer gives other ids than tokenizer.json" in caplog.text and "is followed" in caplog.text


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
