"""How far a forward in bfloat16 is from the same in float32, in Transformers alone: no server, no capture."""

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 300
VOCABULARY = 1024


@dataclass(frozen=True)
class Shape:
    """``branch_gain``: what the last matrices of attention and MLP multiply by, about; the other ones by 1, and the
    embedding has a standard deviation of 1. ``initializer_range``: instead, one standard deviation for every weight."""

    hidden_size: int
    num_layers: int
    branch_gain: float | None = None
    initializer_range: float | None = None


SHAPES = (
    Shape(64, 8, branch_gain=0.5),
    Shape(256, 8, branch_gain=0.5),
    Shape(1024, 8, branch_gain=0.5),
    Shape(256, 16, branch_gain=0.5),
    Shape(256, 32, branch_gain=0.5),
    Shape(256, 8, branch_gain=0.25),
    Shape(64, 6, initializer_range=0.1),
    Shape(256, 6, initializer_range=0.1),
    Shape(256, 8, initializer_range=0.02),
)


@dataclass(frozen=True)
class Rounding:
    """Medians over tokens of the relative error of the stream after the first layer and before the final norm.

    ``first``, ``last``: of a forward in bfloat16. ``stream``: before the final norm, of a forward in float32 in which
    only the residual stream is rounded to bfloat16, between layers. ``growth``: the stream's length there over that of
    the embedding.
    """

    shape: Shape
    first: float
    last: float
    stream: float
    growth: float


def measure_rounding(shape: Shape) -> Rounding:
    """One prompt of random tokens through a random Llama of ``shape``, three times."""
    exact = _model(shape)
    rounded = LlamaForCausalLM(exact.config).to(torch.bfloat16).eval()
    rounded.load_state_dict(exact.state_dict())
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    right, found = _streams(exact, ids), _streams(rounded, ids)
    for layer in exact.model.layers:
        layer.register_forward_hook(lambda _, inputs, output: output.bfloat16().float())
    stream = _streams(exact, ids)
    return Rounding(
        shape=shape,
        first=_median_error(found[1], right[1]),
        last=_median_error(found[-1], right[-1]),
        stream=_median_error(stream[-1], right[-1]),
        growth=float((right[-1].norm(dim=-1) / right[0].norm(dim=-1)).median()),
    )


def _model(shape: Shape) -> LlamaForCausalLM:
    """In float32, of weights that bfloat16 holds."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden_size,
        intermediate_size=2 * shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=max(2, shape.hidden_size // 64),
        num_key_value_heads=max(1, shape.hidden_size // 128),
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(torch.exp(0.5 * torch.randn_like(weight)))
            else:
                weight.normal_(std=_deviation(shape, name, weight))
            weight.copy_(weight.bfloat16())
    return model


def _deviation(shape: Shape, name: str, weight: torch.Tensor) -> float:
    if shape.initializer_range is not None:
        return shape.initializer_range
    if "embed_tokens" in name:
        return 1.0
    gain = shape.branch_gain if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return gain / weight.shape[1] ** 0.5


def _streams(model: LlamaForCausalLM, ids: torch.Tensor) -> list[torch.Tensor]:
    """The residual stream before every layer and before the final norm, float32 [TOKENS, hidden_size] each."""
    streams = []
    before = [
        layer.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0])) for layer in model.model.layers
    ]
    before.append(model.model.norm.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0])))
    with torch.no_grad():
        model.model(ids, use_cache=False)
    for hook in before:
        hook.remove()
    return [stream[0].float() for stream in streams]


def _median_error(found: torch.Tensor, right: torch.Tensor) -> float:
    return float(((found - right).norm(dim=-1) / right.norm(dim=-1)).median())
