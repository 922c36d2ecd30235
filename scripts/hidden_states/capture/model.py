"""Making the loaded model give up its layers: its own setter for the auxiliary ones, its final norm for the last."""

from dataclasses import dataclass
from typing import Any

import torch

from hidden_states.capture.families import setter_argument


@dataclass
class FinalState:
    """Both sides of the final norm in the last forward, [rows, hidden_size]; None before the first."""

    pre_norm: torch.Tensor | None = None
    post_norm: torch.Tensor | None = None

    def clear(self) -> None:
        self.pre_norm = self.post_norm = None


@dataclass(frozen=True)
class CapturedModel:
    """What was set and read back."""

    model_class: str
    num_layers: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    setter_argument: list[int]
    layers_read_back: list[int]
    final: FinalState


def prepare_model(model: torch.nn.Module, layers: tuple[int, ...]) -> CapturedModel:
    """Ask ``model`` for ``layers`` and hook its final norm. L = n comes from the norm, so the setter never sees it.

    Raises ValueError when the model has no setter, an unknown numbering, or gives other layers than asked.
    """
    model_class = type(model).__name__
    setter = getattr(model, "set_eagle3_layers_to_capture", None)
    inner = _inner_model(model)
    if setter is None or inner is None:
        raise ValueError(f"{model_class} cannot capture layers: SGLang gives it no set_eagle3_layers_to_capture")
    num_layers = len(inner.layers)
    aux = [layer for layer in layers if layer < num_layers]
    argument = setter_argument(model_class, aux, num_layers)
    if aux:
        setter(argument)
    read_back = list(inner.layers_to_capture) if aux else []
    if read_back != aux:
        raise ValueError(f"asked {model_class} for layers {aux} with argument {argument}, but read back {read_back}")
    final = FinalState()
    inner.norm.register_forward_hook(_norm_hook(final))
    weight = inner.norm.weight
    return CapturedModel(
        model_class=model_class,
        num_layers=num_layers,
        hidden_size=weight.shape[-1],
        dtype=weight.dtype,
        device=weight.device,
        setter_argument=argument,
        layers_read_back=read_back,
        final=final,
    )


def _inner_model(model: torch.nn.Module) -> torch.nn.Module | None:
    """The first module that has both ``layers_to_capture`` and ``norm``: multimodal wrappers nest it."""
    return next((m for m in model.modules() if hasattr(m, "layers_to_capture") and hasattr(m, "norm")), None)


def _norm_hook(final: FinalState) -> Any:
    def hook(module: torch.nn.Module, inputs: tuple, output: Any) -> None:
        # With a residual the norm returns (normed, residual), the residual being the sum it normed. Without one its
        # input is that sum.
        if isinstance(output, tuple):
            final.post_norm, final.pre_norm = output[0], output[1]
        else:
            final.post_norm, final.pre_norm = output, inputs[0] if inputs else None

    return hook
