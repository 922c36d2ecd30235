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


KIMI = (range(163584, 163840), 163840, (163584, 163585, 163839))
QWEN = (range(151643, 151669), 151669, (None, 151645, 151643))
TOKENIZERS = {
    "moonshotai--Kimi-K2.5": KIMI,
    "moonshotai--Kimi-K2-Instruct": KIMI,
    "deepseek-ai--DeepSeek-V3": ([0, 1, 2, *range(128000, 128815)], 128815, (0, 1, 1)),
    "Qwen--Qwen3-8B": QWEN,
    "Qwen--Qwen3-30B-A3B": QWEN,
    "meta-llama--Meta-Llama-3.1-8B": (range(128000, 128256), 128256, (128000, 128001, None)),
    "openai--gpt-oss-20b": (range(199998, 200019), 200019, (199998, 200002, 199999)),
}
"""Ids of the control tokens, number of ids, and bos, eos and pad, as the published tokenizers have them; the tokens are
made up."""
ONLY_WARNED_OF = ("meta-llama--Meta-Llama-3.1-8B", "deepseek-ai--DeepSeek-V3")
"""Model and tokenizer: the ids at which this model stops are control tokens of that tokenizer too, and the sizes are
almost the same."""


@pytest.fixture(scope="module")
def tokenizers():
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = {}
    for name, (control, size, special) in TOKENIZERS.items():
        words = {f"w{number}": number for number in range(size)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w100"))
        tokenizer.add_special_tokens([AddedToken(f"w{number}", special=True) for number in control])
        kinds = {
            f"{kind}_token": f"w{number}"
            for kind, number in zip(("bos", "eos", "pad"), special, strict=True)
            if number is not None
        }
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
    for name, tokenizer in TOKENIZERS.items():
        if (model, name) == ONLY_WARNED_OF:
            warnings = check_vocabulary(checkpoint, tokenizers[name])["warnings"]
            assert "no row for 559 of the tokenizer's ids" in warnings[0] and "none at which" in warnings[1]
        elif tokenizer != TOKENIZERS[model]:
            with pytest.raises(UserError, match="the tokenizer of another model"):
                check_vocabulary(checkpoint, tokenizers[name])
