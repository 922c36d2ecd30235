"""What a model's folder says about itself."""

import json
import os

import pytest
import torch
from hidden_states.checkpoint import Checkpoint, read_text_config, resolve_model
from hidden_states.errors import UserError
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 4,
    "vocab_size": 10,
    "torch_dtype": "bfloat16",
}


def make_model(folder, tensors, config=CONFIG, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: torch.full(shape, 0.5, dtype=torch.bfloat16) for key, shape in tensors.items()}, folder / name)
    return folder


NAMES = {"model.embed_tokens.weight": (10, 4), "model.norm.weight": (4,), "lm_head.weight": (10, 4)}


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_tensors_are_found_with_and_without_the_wrapper_prefix(tmp_path, prefix):
    checkpoint = Checkpoint(make_model(tmp_path / "m", {prefix + name: shape for name, shape in NAMES.items()}))
    assert checkpoint.embedding.name == prefix + "model.embed_tokens.weight"
    assert checkpoint.embedding.shape == (10, 4)
    assert checkpoint.lm_head.name == prefix + "lm_head.weight"
    assert checkpoint.final_norm.shape == (4,)


def test_two_matches_for_one_tensor_are_refused(tmp_path):
    both = NAMES | {"language_model.model.embed_tokens.weight": (10, 4)}
    with pytest.raises(UserError, match=r"exactly one tensor named model.embed_tokens.weight"):
        _ = Checkpoint(make_model(tmp_path / "m", both)).embedding


def test_a_tied_lm_head_is_the_embedding(tmp_path):
    tensors = {name: shape for name, shape in NAMES.items() if name != "lm_head.weight"}
    checkpoint = Checkpoint(make_model(tmp_path / "m", tensors, CONFIG | {"tie_word_embeddings": True}))
    assert checkpoint.lm_head.name == "model.embed_tokens.weight"


def test_a_missing_lm_head_that_is_not_tied_is_refused(tmp_path):
    tensors = {name: shape for name, shape in NAMES.items() if name != "lm_head.weight"}
    with pytest.raises(UserError, match=r"lm_head\.weight"):
        _ = Checkpoint(make_model(tmp_path / "m", tensors)).lm_head


def test_loaded_tensor_is_the_one_in_the_file(tmp_path):
    checkpoint = Checkpoint(make_model(tmp_path / "m", NAMES))
    assert torch.equal(checkpoint.load(checkpoint.final_norm), torch.full((4,), 0.5, dtype=torch.bfloat16))


def test_a_shard_named_by_the_index_but_absent_is_refused(tmp_path):
    folder = make_model(tmp_path / "m", NAMES, name="model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors is missing"):
        _ = Checkpoint(folder).tensors


def test_a_truncated_weight_file_is_refused(tmp_path):
    folder = make_model(tmp_path / "m", NAMES)
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)
    with pytest.raises(UserError, match="cut short"):
        _ = Checkpoint(folder).tensors


def test_digest_changes_with_any_early_byte_of_a_tensor_and_with_the_config(tmp_path):
    folder = make_model(tmp_path / "m", NAMES)
    cache = tmp_path / "cache.json"
    first = Checkpoint(folder).digest(cache)
    assert Checkpoint(folder).digest(cache) == first
    entry = Checkpoint(folder).final_norm
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(entry.begin)
        file.write(b"\x01")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    changed = Checkpoint(folder).digest(cache)
    assert changed != first
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rms_norm_eps": 1e-5}))
    assert Checkpoint(folder).digest(cache) not in (first, changed)


def test_numbers_come_from_the_nested_text_config(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"architectures": ["Wrapper"], "model_type": "outer", "text_config": CONFIG}))
    config = read_text_config(file)
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (8, 4, 10)
    assert config.architectures == ("Wrapper",)
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "does not hold a JSON object"),
        (json.dumps(CONFIG | {"vocab_size": "ten"}), "vocab_size is 'ten'"),
    ],
)
def test_a_bad_config_is_refused_with_its_file(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_text_config(tmp_path / "config.json")


def test_a_model_path_that_is_neither_folder_nor_repository_is_refused():
    with pytest.raises(UserError, match=r"model\.path: there is no folder"):
        resolve_model("./no/such/model", None)
