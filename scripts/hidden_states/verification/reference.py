"""Reference: every slot of captured states against a forward of the same model in Transformers, in float32.

The only check of the auxiliary slots and of the server's own arithmetic. A server in bfloat16 is off by about one
percent at the median; the largest errors are tokens that a mixture of experts sends elsewhere after rounding.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.verification.samples import CapturedSample

log = logging.getLogger(__name__)

NEIGHBOUR_TOKENS = 256
"""Tokens of each sample at which a slot is compared with other layers too."""
SHORTEST = 8
"""Tokens of the shortest sample whose median says something: one token may be sent to other experts."""

NEARER = 0.9
"""Another state of the reference is the one that a slot holds when its median error is below this share of the own
one's. A layer that changes the state by more than half of the rounding error is told from its neighbours so; one that
changes nearly nothing cannot have a right capture refused by chance."""

ROOM = 1.5
"""Memory needed, as a multiple of the weights in float32."""


@dataclass(frozen=True)
class SlotFigures:
    """Errors of one slot over all tokens of all samples. ``layer`` is L; the final state has the number of layers.

    ``median`` and ``max`` are over tokens, of ``‖state - reference‖ / ‖reference‖``; ``relative_error`` is the same of
    all tokens at once (Frobenius norms). ``worst_sample``: the largest median of a sample of at least ``SHORTEST``
    tokens. ``nearest``: in words, the state of the reference that the slot is nearest to, of its own layer, the
    neighbouring ones, those of other slots, both sides of the final norm, and the rows before and after; None when it
    is the right one.
    """

    layer: int
    median: float
    max: float
    relative_error: float
    worst_sample: float
    nearest: str | None


@dataclass(frozen=True)
class ReferenceFigures:
    """``slots`` as in the state file, the final state last."""

    slots: list[SlotFigures]


def fits(checkpoint: Checkpoint, trust_remote_code: bool) -> tuple[bool, str]:
    """Whether the model can be run here for reference, and in words why or why not."""
    import psutil

    if "quantization_config" in checkpoint.config.raw:
        return False, "the checkpoint is quantised: there are no full weights for a reference"
    if not _is_known(checkpoint.folder, trust_remote_code):
        names = ", ".join(checkpoint.config.architectures) or checkpoint.config.model_type
        return False, f"Transformers does not know the architecture {names}"
    needed = int(ROOM * 4 * sum(_size(entry.shape) for entry in checkpoint.tensors.values()))
    available = psutil.virtual_memory().available
    words = f"the reference needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are available"
    return needed <= available, words


def check(
    model_folder: Path,
    trust_remote_code: bool,
    layers: tuple[int, ...],
    final: str,
    samples: list[CapturedSample],
) -> ReferenceFigures:
    """Compare every slot of ``samples`` with the model in ``model_folder``; one sample at a time.

    ``layers``: the L of the slots before the last; L is the residual stream after L layers, Hugging Face's
    ``hidden_states[L]`` for L < n, and for L = n the input of the final norm. ``final``: ``pre_norm``, the input of
    the final norm, or ``post_norm``, its output. Raises UserError when the model does not load or is built in a way
    that its layers are not found.
    """
    decoder = _decoder(model_folder, trust_remote_code)
    num_layers = len(decoder.layers)
    errors: list[list[torch.Tensor]] = [[] for _ in range(len(layers) + 1)]
    others: list[dict[str, list[torch.Tensor]]] = [{} for _ in errors]
    squares = torch.zeros(len(layers) + 1, 2, dtype=torch.float64)
    for sample in samples:
        reference, states = _forward(decoder, layers, final, sample)
        if sample.states.shape != reference.shape:
            raise UserError(
                f"captured states have shape {list(sample.states.shape)}, the reference {list(reference.shape)}: "
                "the server captured other slots, rows or another width than asked for."
            )
        for slot in range(len(layers) + 1):
            found, right = sample.states[:, slot].float(), reference[:, slot]
            difference, size = (found - right).norm(dim=-1), right.norm(dim=-1)
            errors[slot].append(difference / size.clamp(min=torch.finfo(torch.float32).tiny))
            for words, other in _candidates(states, right, (*layers, final)[slot], num_layers).items():
                others[slot].setdefault(words, []).append(_relative(found[: len(other)], other))
            squares[slot] += torch.stack([difference.double().square().sum(), size.double().square().sum()])
    figures = []
    for slot, layer in enumerate((*layers, num_layers)):
        tokens = torch.cat(errors[slot])
        ratio = float((squares[slot, 0] / squares[slot, 1]).sqrt())
        worst = max((float(sample.median()) for sample in errors[slot] if len(sample) >= SHORTEST), default=0.0)
        nearest = _nearest(torch.cat([sample[:NEIGHBOUR_TOKENS] for sample in errors[slot]]), others[slot])
        figures.append(SlotFigures(layer, float(tokens.median()), float(tokens.max()), ratio, worst, nearest))
    return ReferenceFigures(figures)


def _relative(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """float32 [T]"""
    return (found - right).norm(dim=-1) / right.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)


def _candidates(
    states: dict[int | str, torch.Tensor], right: torch.Tensor, own: int | str, num_layers: int
) -> dict[str, torch.Tensor]:
    """What a slot may hold in place of its ``own`` state, by words, each float32 [≤ NEIGHBOUR_TOKENS, hidden_size]."""
    same = {own, num_layers} if own in ("pre_norm", num_layers) else {own}
    found = {
        f"layer {key}" if isinstance(key, int) else f"the final state, {key.replace('_', '-')}": state
        for key, state in states.items()
        if key not in same and not (key == "pre_norm" and num_layers in same)
    }
    if len(right) > SHORTEST:
        part = right[:NEIGHBOUR_TOKENS]
        found |= {"the row before": part.roll(1, 0), "the row after": part.roll(-1, 0)}
    return {words: state[:NEIGHBOUR_TOKENS] for words, state in found.items()}


def _nearest(own: torch.Tensor, others: dict[str, list[torch.Tensor]]) -> str | None:
    medians = {words: float(torch.cat(errors).median()) for words, errors in others.items()}
    words = min(medians, key=medians.__getitem__)
    return words if medians[words] < NEARER * float(own.median()) else None


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _is_known(folder: Path, trust_remote_code: bool) -> bool:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # remote code may raise anything
        log.info("reference: %s", error)
        return False
    remote = trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return remote or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def _decoder(folder: Path, trust_remote_code: bool) -> Any:
    """The language model without its head, float32, eval: the module that has ``layers`` and their final ``norm``."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=trust_remote_code, dtype=torch.float32, use_safetensors=True
        )
    except Exception as error:  # remote code may raise anything
        raise UserError(
            f"the reference model in {folder} cannot be loaded by Transformers ({error}); set config key "
            "self_check.reference to never to go without it."
        ) from error
    wanted = Checkpoint(folder).config.num_layers
    found = [
        module
        for module in model.modules()
        if isinstance(layers := getattr(module, "layers", None), torch.nn.ModuleList)
        and len(layers) == wanted
        and isinstance(getattr(module, "norm", None), torch.nn.Module)
    ]
    if len(found) != 1:
        raise UserError(
            f"the reference model in {folder} has {len(found)} modules with {wanted} layers and a final norm, instead "
            "of one; set config key self_check.reference to never to go without it."
        )
    return found[0].eval()


def _forward(
    decoder: Any, layers: tuple[int, ...], final: str, sample: CapturedSample
) -> tuple[torch.Tensor, dict[int | str, torch.Tensor]]:
    """float32 [T, slots, hidden_size] of one prompt, and the first states of every layer that is kept."""
    with torch.no_grad(), _kept(decoder, layers) as states:
        decoder(input_ids=torch.from_numpy(sample.token_ids)[None], use_cache=False)
    return torch.stack([states[layer] for layer in layers] + [states[final]], dim=1), states


@contextmanager
def _kept(decoder: Any, layers: tuple[int, ...]) -> Iterator[dict[int | str, torch.Tensor]]:
    """Collect the inputs of the layers wanted, and the final norm's input and output, each [T, hidden_size]; of the
    layers beside them the first rows."""
    states: dict[int | str, torch.Tensor] = {}

    def keep_input(layer: int) -> Any:
        def hook(module: Any, arguments: tuple, named: dict[str, Any]) -> None:
            rows = (arguments[0] if arguments else named["hidden_states"])[0]
            states[layer] = (rows if layer in layers else rows[:NEIGHBOUR_TOKENS]).clone()

        return hook

    def keep_final(module: Any, arguments: tuple, output: torch.Tensor) -> None:
        states["pre_norm"], states["post_norm"] = arguments[0][0].clone(), output[0].clone()
        states[len(decoder.layers)] = states["pre_norm"]

    beside = {layer + step for layer in (*layers, len(decoder.layers)) for step in (-1, 0, 1)}
    inner = [layer for layer in sorted(beside) if layer < len(decoder.layers)]
    handles = [decoder.layers[layer].register_forward_pre_hook(keep_input(layer), with_kwargs=True) for layer in inner]
    handles.append(decoder.norm.register_forward_hook(keep_final))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
