"""A tiny random model of the DeepSeek-V3 shape, with its own tokenizer, made the same way every time.

It exercises what the large ones have: multi-head latent attention whose four widths all differ, a mixture of experts
with a shared one, yarn rope. Its norm weights are random (log-normal, σ = 0.5), so that states before and after a
norm differ, and its weights are scaled so that every layer changes the residual stream.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hidden_states.files import atomic_path, write_json, write_text

if TYPE_CHECKING:
    import torch

CONVERSATIONS = Path("resources") / "conversations" / "demo.jsonl"
"""What the tokenizer is trained on, in the repository."""

SEED = 20_260
VOCABULARY = 1024
"""Embedding rows; the tokenizer fills all but the last few, as real models pad."""
UNUSED_ROWS = 16
EXPERT_GAIN = 0.15
"""Small, because rounding sends a few tokens to other experts than exact arithmetic would, and attention spreads what
they then carry to all later tokens: with 0.5 the median error of some prompts is 9 % in bfloat16, with this 1.5 %. A
server that takes wrong experts everywhere (without the correction bias, say) is still off by 5 to 25 %."""
SPECIAL_TOKENS = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "<|begin|>{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('a turn of ' ~ message['role'] ~ ' is not foreseen') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' }}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Only appends: the rendering of the first turns is the beginning of the rendering of all."""
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 2048,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make_demo_model(folder: Path, texts: list[str]) -> None:
    """Write config, weights (bfloat16, about 5 MB), tokenizer and chat template into ``folder``.

    ``texts``: what the tokenizer is trained on. Equal texts give equal bytes.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder, texts)
    config = CONFIG | {
        "bos_token_id": ids["<|begin|>"],
        "eos_token_id": ids["<|end|>"],
        "pad_token_id": ids["<|pad|>"],
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": ids["<|end|>"], "do_sample": False})
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(_weights(), temporary, metadata={"format": "pt"})
        temporary.chmod(0o644)


def _write_tokenizer(folder: Path, texts: list[str]) -> dict[str, int]:
    """Train a byte-level BPE tokenizer; return the ids of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - UNUSED_ROWS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONFIG["max_position_embeddings"],
            "added_tokens_decoder": {
                str(tokenizer.token_to_id(token)): {"content": token, "special": True} for token in SPECIAL_TOKENS
            },
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}


def _weights() -> "dict[str, torch.Tensor]":
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def linear(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        weight = torch.randn(rows, columns, generator=generator) * gain / columns**0.5
        return weight.to(torch.bfloat16)

    def norm(width: int) -> torch.Tensor:
        return torch.exp(0.5 * torch.randn(width, generator=generator)).to(torch.bfloat16)

    def mlp(name: str, width: int, gain: float = 0.5) -> dict[str, torch.Tensor]:
        return {
            f"{name}.gate_proj.weight": linear(width, hidden),
            f"{name}.up_proj.weight": linear(width, hidden),
            f"{name}.down_proj.weight": linear(hidden, width, gain=gain),
        }

    c = CONFIG
    hidden, heads, experts = c["hidden_size"], c["num_attention_heads"], c["n_routed_experts"]
    query_width = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    tensors = {"model.embed_tokens.weight": linear(VOCABULARY, hidden, gain=hidden**0.5)}
    for index in range(c["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.input_layernorm.weight": norm(hidden),
            f"{layer}.post_attention_layernorm.weight": norm(hidden),
            f"{layer}.self_attn.q_a_proj.weight": linear(c["q_lora_rank"], hidden),
            f"{layer}.self_attn.q_a_layernorm.weight": norm(c["q_lora_rank"]),
            f"{layer}.self_attn.q_b_proj.weight": linear(heads * query_width, c["q_lora_rank"], gain=0.6),
            f"{layer}.self_attn.kv_a_proj_with_mqa.weight": linear(c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden),
            f"{layer}.self_attn.kv_a_layernorm.weight": norm(c["kv_lora_rank"]),
            f"{layer}.self_attn.kv_b_proj.weight": linear(
                heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]
            ),
            f"{layer}.self_attn.o_proj.weight": linear(hidden, heads * c["v_head_dim"], gain=0.4),
        }
        if index < c["first_k_dense_replace"]:
            tensors |= mlp(f"{layer}.mlp", c["intermediate_size"])
            continue
        tensors[f"{layer}.mlp.gate.weight"] = linear(experts, hidden)
        tensors[f"{layer}.mlp.gate.e_score_correction_bias"] = 0.3 * torch.randn(experts, generator=generator)
        for expert in range(experts):
            tensors |= mlp(f"{layer}.mlp.experts.{expert}", c["moe_intermediate_size"], gain=EXPERT_GAIN)
        tensors |= mlp(f"{layer}.mlp.shared_experts", c["moe_intermediate_size"])
    tensors["model.norm.weight"] = norm(hidden)
    tensors["lm_head.weight"] = linear(VOCABULARY, hidden, gain=3.0)
    return tensors


def corpus(conversations: Path) -> list[str]:
    """Every string of a JSONL file's rows, the text the demo tokenizer is trained on."""

    def strings(value: object) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):
            return [text for item in value.values() for text in strings(item)]
        return [text for item in value for text in strings(item)] if isinstance(value, list) else []

    lines = conversations.read_text(encoding="utf-8").splitlines()
    return [text for line in lines if line.strip() for text in strings(json.loads(line))]
