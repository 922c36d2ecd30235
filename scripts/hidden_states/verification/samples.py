"""A captured prompt together with what the server itself said about it."""

from dataclasses import dataclass

import numpy
import torch


@dataclass(frozen=True)
class CapturedSample:
    """One prompt of the self-check.

    ``token_ids``: int64 [T]. ``states``: bfloat16 [T, slots, hidden_size], the final state last.
    ``top1[t]`` and ``logprobs[t]`` are the server's most likely token and log p(token_t) at position t, given the
    tokens before it: they come from row t - 1 of the states. Both begin with None, as nothing comes before token 0.
    """

    token_ids: numpy.ndarray
    states: torch.Tensor
    top1: list[int | None]
    logprobs: list[float | None]
