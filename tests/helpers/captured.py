"""Captured prompts of the demo model, made as a right server would: bfloat16 states, and its words about them."""

from pathlib import Path

import numpy
import torch
from hidden_states.verification.samples import CapturedSample

LAYERS = (2, 4, 5)
LENGTHS = (1, 40, 130, 7)


def capture(
    folder: Path, final: str = "pre_norm", layers: tuple[int, ...] = LAYERS, lengths: tuple[int, ...] = LENGTHS
) -> list[CapturedSample]:
    """Prompts of ``lengths`` random tokens through the model in bfloat16, as ``hidden_states[L]`` has them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    kept = {}
    model.model.norm.register_forward_hook(lambda module, arguments, output: kept.update(x=(arguments[0], output)))
    random, samples = numpy.random.default_rng(1), []
    for length in lengths:
        ids = random.integers(7, model.config.vocab_size, length)
        with torch.no_grad():
            output = model(torch.from_numpy(ids)[None], output_hidden_states=True)
        last = kept["x"][0 if final == "pre_norm" else 1][0]
        states = torch.stack([*(output.hidden_states[layer][0] for layer in layers), last], dim=1)
        scores = output.logits[0].float().log_softmax(-1)
        top1 = [None, *scores.argmax(-1)[:-1].tolist()]
        logprobs = [None, *(float(scores[t, ids[t + 1]]) for t in range(length - 1))]
        samples.append(CapturedSample(ids, states.clone(), top1, logprobs))
    return samples
