"""Tiny random models of the architectures that people train drafters for, saved as their checkpoints are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NUM_LAYERS = 8
HIDDEN_SIZE = 256
VOCABULARY = 1024
UNUSED_ROWS = 24
"""The embedding has so many rows more than the tokenizer has tokens, as real models pad theirs."""
EXPERT_GAIN = 0.1
"""Small: rounding sends a few tokens to other experts than exact arithmetic would."""
BRANCH_GAIN = 0.25
"""Of what attention and MLP add to the residual stream. Two neighbouring layers then differ by a quarter of its length,
and rounding to bfloat16 stays below 0.01 over all layers (docs/families.md)."""

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 512,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
DEEPSEEK_V3 = COMMON | EXPERTS | LATENT | {"n_group": 2, "topk_group": 1}


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**COMMON)


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**COMMON, sliding_window=None)


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**COMMON | {"tie_word_embeddings": True})


def _qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**COMMON)


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(**COMMON, **EXPERTS, num_experts=8)


def _deepseek_v2() -> Any:
    from transformers import DeepseekV2Config

    grouped = {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "norm_topk_prob": False}
    return DeepseekV2Config(**COMMON | EXPERTS | LATENT | grouped)


def _deepseek_v3() -> Any:
    from transformers import DeepseekV3Config

    return DeepseekV3Config(**DEEPSEEK_V3)


def _glm4_moe() -> Any:
    from transformers import Glm4MoeConfig

    return Glm4MoeConfig(
        **COMMON,
        **EXPERTS,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
    )


def _gpt_oss() -> Any:
    from transformers import GptOssConfig

    return GptOssConfig(
        **COMMON | {"intermediate_size": 128}, num_local_experts=8, num_experts_per_tok=2, sliding_window=64
    )


def _gemma3() -> Any:
    from transformers import Gemma3TextConfig

    tied = {"tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 2}
    return Gemma3TextConfig(**COMMON | tied, query_pre_attn_scalar=64, sliding_window=64)


def _minimax_m2() -> Any:
    from transformers import MiniMaxM2Config

    return MiniMaxM2Config(
        **COMMON | {"intermediate_size": 128}, num_local_experts=8, num_experts_per_tok=2, rotary_dim=32
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k25": _deepseek_v3,
}
"""The configuration of each one's language model, by family; dense ones first."""
DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


def make_family(family: str, folder: Path) -> Path:
    """Write a model of ``family`` in bfloat16, in shards with an index, and a tokenizer with fewer tokens than rows."""
    from transformers import AutoModelForCausalLM

    config = FAMILIES[family]()
    config.dtype = "bfloat16"
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            _randomise(name, tensor, family)
        model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="4MB")
    _as_published(folder / "config.json")
    _write_tokenizer(folder)
    return folder


def wrap_as_kimi_k25(text: Path, folder: Path) -> Path:
    """The wrapper of Kimi-K2.5 around the DeepSeek-V3 model in ``text``, with the names that its checkpoint has;
    without the weights of its vision tower, which text does not need."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    index = json.loads((text / "model.safetensors.index.json").read_text())
    for name in sorted(set(index["weight_map"].values())):
        tensors = {f"language_model.{key}": tensor for key, tensor in load_file(text / name).items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
    index["weight_map"] = {f"language_model.{key}": name for key, name in index["weight_map"].items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "media_placeholder_token_id": VOCABULARY - 1,
        "pad_token_id": 0,
        "text_config": json.loads((text / "config.json").read_text()),
        "vision_config": {
            "vt_num_hidden_layers": 2,
            "vt_hidden_size": 64,
            "vt_intermediate_size": 128,
            "vt_num_attention_heads": 2,
            "mm_hidden_size": 64,
            "text_hidden_size": HIDDEN_SIZE,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_processor(folder)
    return folder


PROCESSOR = """
from transformers import AutoTokenizer, BaseImageProcessor


class MediaProcessor:
    media_proc_cfg = {
        "patch_size": 14,
        "merge_kernel_size": 2,
        "in_patch_limit": 16384,
        "patch_limit_on_one_side": 512,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


class TextOnlyProcessor:
    def __init__(self, tokenizer):
        self.tokenizer, self.image_processor, self.media_processor = tokenizer, BaseImageProcessor(), MediaProcessor()

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoProcessor"):
        pass

    @classmethod
    def from_pretrained(cls, folder, **settings):
        return cls(AutoTokenizer.from_pretrained(folder))
"""


def _write_processor(folder: Path) -> None:
    """SGLang wants one for images, though none will come; the real one too is Python code in the checkpoint."""
    _write_tokenizer(folder)
    (folder / "text_only_processor.py").write_text(PROCESSOR)
    auto_map = {"AutoProcessor": "text_only_processor.TextOnlyProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({"auto_map": auto_map}))


def _as_published(path: Path) -> None:
    """Published config.json files have keys that SGLang reads, and Transformers 5 writes otherwise or leaves out."""
    config = json.loads(path.read_text())
    if config["model_type"] == "minimax_m2":
        config |= {
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
        }
    if "deepseek" in config["model_type"]:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
        third = config["model_type"] == "deepseek_v3"
        config |= {
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid" if third else "softmax",
            "topk_method": "noaux_tc" if third else "group_limited_greedy",
            "num_nextn_predict_layers": 0,
        }
    path.write_text(json.dumps(config))


def _randomise(name: str, tensor: torch.Tensor, family: str) -> None:
    """Weights that keep states of a usual size, and let each layer change the residual stream."""
    if "rotary" in name or "inv_freq" in name or "pos_emb" in name:
        return
    if "norm" in name and name.endswith("weight"):
        # Unit weights would hide a state taken on the wrong side of a norm. Gemma multiplies by 1 + weight.
        tensor.copy_(torch.exp(0.5 * torch.randn_like(tensor)) - (1 if family == "gemma3" else 0))
    elif "correction_bias" in name:
        tensor.copy_(0.3 * torch.randn_like(tensor))
    elif tensor.dim() < 2:
        tensor.copy_(0.1 * torch.randn_like(tensor))
    elif "embed_tokens" in name:
        tensor.copy_(torch.randn_like(tensor) / (HIDDEN_SIZE**0.5 if family == "gemma3" else 1))
    else:
        gain = 1.0
        if "lm_head" in name:
            gain = 3.0
        elif "experts" in name and "down_proj" in name and "shared" not in name:
            gain = EXPERT_GAIN
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            gain = BRANCH_GAIN
        # Experts that are applied as x @ W have their inputs in the last but one dimension.
        inputs = tensor.shape[-2] if family == "gpt_oss" and "experts" in name else tensor.shape[-1]
        tensor.copy_(torch.randn_like(tensor) * gain / inputs**0.5)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(VOCABULARY - UNUSED_ROWS)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0", eos_token="w1"
    ).save_pretrained(folder)
