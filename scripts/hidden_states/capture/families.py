"""How each model family numbers the layers it is asked to capture.

SGLang's ``set_eagle3_layers_to_capture(ids)`` turns its argument into ``layers_to_capture``, the layers *before* which
the residual stream is taken: exactly our L. The mapping differs from model to model (read in SGLang 0.5.16 and 0.5.23);
what it came to is read back and compared, so a family that changes its mind is refused, not mistaken.
"""

from collections.abc import Callable, Sequence


def output_ids(layers: Sequence[int], num_layers: int) -> list[int]:
    """Families that add one to every id: the ids of the layers whose output is wanted."""
    return [layer - 1 for layer in layers]


def deepseek_ids(layers: Sequence[int], num_layers: int) -> list[int]:
    """DeepSeek takes ids as they are, unless the first is 1: then it adds one to all."""
    if layers and layers[0] == 1:
        raise ValueError("layer 1 cannot be reached through this model's setter; choose layers from 2 on")
    return list(layers)


def gpt_oss_ids(layers: Sequence[int], num_layers: int) -> list[int]:
    """gpt-oss takes ids as they are when the last is n, else adds one. L = n never gets here: the norm has it."""
    return [layer - 1 for layer in layers]


SETTER_IDS: dict[str, Callable[[Sequence[int], int], list[int]]] = {
    "LlamaForCausalLM": output_ids,
    "MistralForCausalLM": output_ids,
    "Qwen2ForCausalLM": output_ids,
    "Qwen2MoeForCausalLM": output_ids,
    "Qwen3ForCausalLM": output_ids,
    "Qwen3MoeForCausalLM": output_ids,
    "Glm4MoeForCausalLM": output_ids,
    "MiniMaxM2ForCausalLM": output_ids,
    "DeepseekV2ForCausalLM": deepseek_ids,
    "DeepseekV3ForCausalLM": deepseek_ids,
    "KimiK25ForConditionalGeneration": deepseek_ids,
    "Glm4MoeLiteForCausalLM": deepseek_ids,
    "GptOssForCausalLM": gpt_oss_ids,
}

UNUSABLE = {
    "Gemma3ForCausalLM": "SGLang hands out what the layer before adds to the residual stream, not the stream",
}
"""Families with a setter whose states are wrong, and how: found by comparison with Transformers (docs/families.md)."""


def setter_argument(model_class: str, layers: Sequence[int], num_layers: int) -> list[int]:
    """The argument that makes ``model_class`` capture ``layers`` (all below n). Raises ValueError for a family
    whose numbering is not known, or layers it cannot reach."""
    if model_class in UNUSABLE:
        raise ValueError(f"the layers of {model_class} cannot be captured: {UNUSABLE[model_class]}")
    if model_class not in SETTER_IDS:
        known = ", ".join(sorted(SETTER_IDS))
        raise ValueError(f"how {model_class} numbers its layers is not known, and is not guessed; known: {known}")
    return SETTER_IDS[model_class](layers, num_layers)
