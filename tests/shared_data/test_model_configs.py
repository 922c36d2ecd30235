"""Real model configs: numbers come from the (nested) text config."""

import os
from pathlib import Path

import pytest
from hidden_states.checkpoint import read_text_config
from hidden_states.layers import resolve_layers

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
