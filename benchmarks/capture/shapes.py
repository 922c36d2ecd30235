"""Model folders without weights (the server makes dummy ones) and prompts of random ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from hidden_states.demo_model import CONVERSATIONS, corpus, make_demo_model

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
TINY = LLAMA_8B | {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
COMMON = {"torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": LLAMA_8B | COMMON,
    "deepseek-v3-8-layers": DEEPSEEK_V3 | COMMON,
    "tiny": TINY | COMMON,
}
"""``tiny`` is for trying the benchmark on a processor."""

MIXED = "mixed"
MIXED_QUANTILES = (
    (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1),
    (39, 140, 221, 455, 954, 1623, 2243, 3145, 3931),
)
"""Lengths of real conversations: characters over four of the 500 rows of LLaMA-Factory's kto_en_demo.json."""


def make_model(shape: str, folder: Path) -> Path:
    """A folder with the config of ``shape`` and a small tokenizer; no weights."""
    repository = Path(__file__).parents[2]
    made = folder / "demo"
    make_demo_model(made, corpus(repository / CONVERSATIONS))
    model = folder / shape
    model.mkdir()
    for file in made.iterdir():
        if "token" in file.name:
            (model / file.name).write_bytes(file.read_bytes())
    (model / "config.json").write_text(json.dumps(SHAPES[shape], indent=1))
    return model


def prompts(shape: str, length: str, seed: int) -> Iterator[numpy.ndarray]:
    """Endless prompts, int64 [num_tokens], no two alike; ``length`` is a number of tokens or ``mixed``."""
    chance = numpy.random.default_rng(seed)
    while True:
        count = int(numpy.interp(chance.random(), *MIXED_QUANTILES)) if length == MIXED else int(length)
        yield chance.integers(0, SHAPES[shape]["vocab_size"], count)
