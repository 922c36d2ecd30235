"""Real model configs: numbers come from the (nested) text config, and only their own tokenizers fit them."""

import json
import os
import struct
from pathlib import Path

import pytest
from hidden_states.checkpoint import Checkpoint, read_text_config
from hidden_states.errors import UserError
from hidden_states.layers import resolve_layers
from hidden_states.vocabulary.fit import check_vocabulary

DATA = Path(os.environ.get("HIDDEN_STATES_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data set is not here")


@pytest.mark.parametrize(
    ("model", "num_layers", "hidden_size", "vocab_size"),
    [
        ("moonshotai--Kimi-K2.5", 61, 7168, 163840),
        ("moonshotai--Kimi-K2-Instruct", 61, 7168, 163840),
        ("deepseek-ai--DeepSeek-V3", 61, 7168, 129280),
        ("Qwen--Qwen3-8B", 36, 4096, 151936),
        ("Qwen--Qwen3-30B-A3B", 48, 2048, 151936),
        ("meta-llama--Meta-Llama-3.1-8B", 32, 4096, 128256),
        ("openai--gpt-oss-20b", 24, 2880, 201088),
    ],
)
def test_numbers_of_real_configs(model, num_layers, hidden_size, vocab_size):
    config = read_text_config(DATA / "model_configs" / model / "config.json")
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (num_layers, hidden_size, vocab_size)
    assert len(resolve_layers("eagle3", config.num_layers)) == 3


KIMI = ({"[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "[PAD]": 163839}, 163840, ("[BOS]", "[EOS]", "[PAD]"))
QWEN = ({"<|endoftext|>": 151643, "<|im_end|>": 151645, "</think>": 151668}, 151669, (None, "<|im_end|>", None))
TOKENIZERS = {
    "moonshotai--Kimi-K2.5": KIMI,
    "moonshotai--Kimi-K2-Instruct": KIMI,
    "deepseek-ai--DeepSeek-V3": (
        {"<begin>": 0, "<end>": 1, "<pad>": 2, "<User>": 128803},
        128815,
        ("<begin>", "<end>", "<end>"),
    ),
    "Qwen--Qwen3-8B": QWEN,
    "Qwen--Qwen3-30B-A3B": QWEN,
    "meta-llama--Meta-Llama-3.1-8B": (
        {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|eot_id|>": 128009},
        128256,
        ("<|begin_of_text|>", "<|end_of_text|>", None),
    ),
    "openai--gpt-oss-20b": (
        {"<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002, "<|call|>": 200012},
        200019,
        ("<|startoftext|>", "<|return|>", "<|endoftext|>"),
    ),
}
"""Control tokens with the ids that the published tokenizers give them, number of ids, and which are bos, eos, pad. The
other ids are words made up."""


@pytest.fixture(scope="module")
def tokenizers():
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = {}
    for name, (control, size, special) in TOKENIZERS.items():
        words = {f"w{number}": number for number in set(range(size)) - set(control.values())} | control
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w100"))
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
        kinds = {f"{kind}_token": token for kind, token in zip(("bos", "eos", "pad"), special, strict=True) if token}
        made[name] = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **kinds)
    return made


@pytest.fixture
def checkpoint_of(tmp_path):
    """The real config with the headers of weights of its size (a sparse file)."""

    def make(model):
        folder = tmp_path / model
        folder.mkdir()
        config = (DATA / "model_configs" / model / "config.json").read_text()
        (folder / "config.json").write_text(config)
        text = read_text_config(folder / "config.json")
        size = text.vocab_size * text.hidden_size * 2
        tensors = {
            name: {"dtype": "BF16", "shape": [text.vocab_size, text.hidden_size], "data_offsets": [at, at + size]}
            for name, at in (("model.embed_tokens.weight", 0), ("lm_head.weight", size))
        }
        header = json.dumps(tensors).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 2 * size)
        return Checkpoint(folder)

    return make


@pytest.mark.parametrize("model", TOKENIZERS)
def test_only_its_own_tokenizer_belongs_to_a_model(model, tokenizers, checkpoint_of):
    checkpoint = checkpoint_of(model)
    found = check_vocabulary(checkpoint, tokenizers[model])
    assert found["warnings"] == [] and found["ids_without_row"] == 0
    for name, (control, *_) in TOKENIZERS.items():
        if control != TOKENIZERS[model][0]:
            with pytest.raises(UserError, match="the tokenizer of another model"):
                check_vocabulary(checkpoint, tokenizers[name])
