"""Logit replay: ``lm_head(norm(final slot))``, from the checkpoint's two tensors, against the server's own logits.

Row t of the states predicts token t + 1. Where it is the right row, of the right layer, normed once, its logits are
those that the server computed: the token it found most likely has the largest logit, and its log-probabilities come
out. Only two tensors are read, so this works for a model of any size. It compares the server with itself: a server
that computes wrongly passes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open

from hidden_states.checkpoint import Checkpoint, TensorEntry
from hidden_states.errors import UserError
from hidden_states.verification.samples import CapturedSample

MAX_POSITIONS = 8192
"""Positions compared at most; more are thinned out evenly, as each costs a product with the whole vocabulary."""

VOCABULARY_BLOCK = 8192
ROW_BLOCK = 1024

ROUNDING = 2.0**-7
"""Share of the largest logit by which the server's choice may lie below it.

The server's logits are bfloat16: each is off by up to 2^-9 of itself, so two that are closer than 2^-8 may change
places, and the normed state was rounded before. The share is twice that. It is far below the usual distance between
the first and the second: the figures of wrong states hardly move with it.
"""

SCALED_ROUNDING = 4 * ROUNDING
"""The same for log-probabilities where the head is float8: a server may round the normed state to float8 too."""

LEAD = 0.125
"""Share of the largest logit's lead over the average one by which the server's choice may lie below it, at most and
not quite: states of zeros give equal logits, which agree with no choice."""

SHORTEST = 8
"""Positions of the shortest prompt whose own median says something."""

MAX_ALTERNATIVE_POSITIONS = 256
"""Positions at which other readings of the states are tried."""

MISTAKEN = 0.5
"""Another reading of the states than the one asked for is the right one when its median difference of log-probabilities
is below this share of the asked one's. Of right states every other reading is worse by 8 times and more, even where
norm weights differ from one by 2 % only; of wrong ones the right reading is better by as much."""

UNMOVED = 0.003
"""States asked for as they are before the norm, which the norm moves by less than this share in median, were normed
already: so it is with norm weights of one, where the logits of both are equal. Rounding moves such states by 0.0002.
Those before the norm have sizes of their own: even in a model with weights and embeddings of size one it moves them by
0.03, in the demo model by 0.5. Weights further from one than this show in the log-probabilities."""

EPSILON_KEYS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
PLAIN_DTYPES = ("BF16", "F16", "F32")
SCALED_DTYPES = ("F8_E4M3", "F8_E5M2")
SCALE_NAMES = ("weight_scale_inv", "weight_scale")
"""What a float8 weight is multiplied by, beside it in the checkpoint: one number, one a row, or one a block (DeepSeek's
``weight_scale_inv``; https://huggingface.co/deepseek-ai/DeepSeek-V3, "FP8 weights")."""
ONE_PLUS_WEIGHT = ("gemma", "gemma2", "gemma3", "recurrent_gemma", "vaultgemma", "qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Model types whose norm multiplies by 1 + weight."""

MEAN_SUBTRACTING = ("cohere", "cohere2", "cohere2_moe")
"""Model types whose final norm is no RMSNorm, though nothing in the checkpoint shows it."""

AFTER_NORM = "the state after the final norm in place of the one before it"
BEFORE_NORM = "the state before the final norm in place of the one after it"
LATE, EARLY = ROW_SHIFTS = ("each state one row too late", "each state one row too early")

Treatment = Callable[[Checkpoint, torch.Tensor], torch.Tensor]
"""What is done to rows [P, hidden_size] before the head; it may change them."""


class ReplayImpossible(Exception):
    """The checkpoint or the server's answers do not allow a replay; the message says why."""


@dataclass(frozen=True)
class ReplayFigures:
    """``agreement``: share of positions at which the server's most likely token is ours too, up to rounding.
    ``tokens``: positions compared. The differences are of log-probabilities, natural logarithm; ``worst_sample`` is the
    largest median of a prompt of at least ``SHORTEST`` positions, ``rounding`` what a median may be when only the
    server's logits were rounded to bfloat16. ``asked`` and ``alternatives``: the median difference of the states as
    they are, and read in other ways (words → median), at fewer positions. ``unmoved``: the states were asked for
    before the norm, but it does not change them."""

    agreement: float
    tokens: int
    median_abs_logprob_difference: float
    max_abs_logprob_difference: float
    worst_sample: float
    rounding: float
    asked: float
    alternatives: dict[str, float]
    unmoved: bool

    @property
    def mistaken_for(self) -> str | None:
        """The reading that explains the states much better than the one asked for, in words, if there is one."""
        if self.unmoved:
            return AFTER_NORM
        words = min(self.alternatives, key=self.alternatives.__getitem__, default=None)
        return words if words is not None and self.alternatives[words] < MISTAKEN * self.asked else None


@dataclass(frozen=True)
class _Positions:
    """``rows`` [P, hidden_size] float32 after the norm; ``top1`` and ``tokens`` int64 [P], ``logprobs`` float32 [P]:
    what the server said of the token that follows each row, and which it is. ``counts``: positions of each prompt."""

    rows: torch.Tensor
    top1: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor
    counts: list[int]


@dataclass(frozen=True)
class _Logits:
    """Of every position, float32 [P]: the largest logit, the average, the logarithm of the sum of exponentials, the
    logit of the server's most likely token, and that of the token that follows."""

    largest: torch.Tensor
    average: torch.Tensor
    log_sum: torch.Tensor
    of_top1: torch.Tensor
    of_token: torch.Tensor


def check(checkpoint: Checkpoint, final: str, samples: list[CapturedSample]) -> ReplayFigures:
    """Replay the last slot of all ``samples``; ``final`` is ``pre_norm`` or ``post_norm``.

    Raises ReplayImpossible when the two tensors are missing or quantised, the model's norm is of another kind, or
    the server gave no log-probability to compare with. States that are not finite agree nowhere.
    """
    head = _head(checkpoint)
    positions = _positions(checkpoint, final, samples)
    vocabulary = min(head.shape[0], checkpoint.config.vocab_size)
    for what in (positions.top1, positions.tokens):
        if int(what.max()) >= vocabulary:
            raise ReplayImpossible(f"token {int(what.max())} is beyond the {vocabulary} rows of {head.name}")
    logits = _logits(checkpoint, head, vocabulary, positions)
    behind = logits.largest - logits.of_top1
    agrees = (behind <= ROUNDING * logits.largest.abs()) & (behind < LEAD * (logits.largest - logits.average))
    difference = _difference(logits, positions)
    parts = difference.split(positions.counts)
    asked, alternatives, unmoved = _alternatives(checkpoint, head, vocabulary, final, samples)
    return ReplayFigures(
        agreement=float(agrees.double().mean()),
        tokens=agrees.numel(),
        median_abs_logprob_difference=float(difference.median()),
        max_abs_logprob_difference=float(difference.max()),
        worst_sample=max((float(part.median()) for part in parts if len(part) >= SHORTEST), default=0.0),
        rounding=(SCALED_ROUNDING if head.dtype in SCALED_DTYPES else ROUNDING) * float(logits.largest.abs().median()),
        asked=asked,
        alternatives=alternatives,
        unmoved=unmoved,
    )


def _difference(logits: _Logits, positions: _Positions) -> torch.Tensor:
    """float32 [P]; where a logit is not a number, infinite."""
    return (logits.of_token - logits.log_sum - positions.logprobs).abs().nan_to_num(torch.inf, torch.inf)


def _alternatives(
    checkpoint: Checkpoint, head: TensorEntry, vocabulary: int, final: str, samples: list[CapturedSample]
) -> tuple[float, dict[str, float], bool]:
    """The median difference of the states as asked for, that of each other reading of them, and whether states asked
    for before the norm stay as they are under it."""
    normed = final == "post_norm"
    asked, other = (_as_they_are, _normed) if normed else (_normed, _as_they_are)
    # Slot, what is done to its rows, and how many rows too far down they stand; the first is what was asked for.
    readings: dict[str, tuple[int, Treatment, int]] = {
        "": (-1, asked, 0),
        BEFORE_NORM if normed else AFTER_NORM: (-1, other, 0),
        "the state after the final norm, normed once more": (-1, _norm_undone, 0),
        LATE: (-1, asked, 1),
        EARLY: (-1, asked, -1),
    }
    for slot in range(samples[0].states.shape[1] - 1):
        readings[f"the final state in slot {slot}"] = (slot, _normed, 0)
    if normed and not _norm_is_known(checkpoint):
        readings = {words: reading for words, reading in readings.items() if reading[1] is _as_they_are}
    rows: list[list[torch.Tensor]] = [[] for _ in readings]
    tokens, logprobs = [], []
    for sample, chosen in _chosen(samples, MAX_ALTERNATIVE_POSITIONS, margin=1):
        for found, (slot, _, shift) in zip(rows, readings.values(), strict=True):
            found.append(sample.states[chosen - 1 + shift, slot].float())
        tokens.append(torch.from_numpy(sample.token_ids)[chosen])
        logprobs += [sample.logprobs[position] for position in chosen.tolist()]
    if not tokens:
        return 0.0, {}, False
    captured = torch.cat(rows[0])
    stacked = [
        treat(checkpoint, torch.cat(found)) for found, (_, treat, _) in zip(rows, readings.values(), strict=True)
    ]
    moved = float(((stacked[0] - captured).norm(dim=1) / captured.norm(dim=1)).median())
    count = len(stacked)
    positions = _Positions(
        rows=torch.cat(stacked),
        top1=torch.cat(tokens).repeat(count),
        tokens=torch.cat(tokens).repeat(count),
        logprobs=torch.tensor(logprobs, dtype=torch.float32).repeat(count),
        counts=[len(logprobs)] * count,
    )
    difference = _difference(_logits(checkpoint, head, vocabulary, positions), positions)
    medians = difference.view(count, -1).median(1).values.tolist()
    return medians[0], dict(zip(list(readings)[1:], medians[1:], strict=True)), not normed and moved < UNMOVED


def _head(checkpoint: Checkpoint) -> TensorEntry:
    try:
        head = checkpoint.lm_head
    except UserError as error:
        raise ReplayImpossible(str(error)) from error
    known = head.dtype in PLAIN_DTYPES or (head.dtype in SCALED_DTYPES and _scale_entry(checkpoint, head) is not None)
    if not known or len(head.shape) != 2 or head.shape[1] != checkpoint.config.hidden_size:
        shape = " × ".join(str(size) for size in head.shape)
        raise ReplayImpossible(
            f"{head.name} is {head.dtype} of {shape}: quantised in a way that is not known, or not [vocabulary, "
            f"{checkpoint.config.hidden_size}]"
        )
    return head


def _scale_entry(checkpoint: Checkpoint, head: TensorEntry) -> TensorEntry | None:
    stem = head.name.removesuffix("weight")
    return next((found for name in SCALE_NAMES if (found := checkpoint.tensors.get(stem + name)) is not None), None)


def _scale(checkpoint: Checkpoint, head: TensorEntry) -> Callable[[int, int], torch.Tensor] | None:
    """What rows ``begin`` to ``end`` of a float8 head are multiplied by, float32 [1 or rows, 1 or hidden_size]; None
    for other heads. Raises ReplayImpossible for a scale of another shape."""
    if head.dtype not in SCALED_DTYPES:
        return None
    entry = _scale_entry(checkpoint, head)
    scale, (rows, columns) = checkpoint.load(entry).float(), head.shape
    if scale.numel() == 1:
        return lambda begin, end: scale.view(1, 1)
    if scale.numel() == rows:
        return lambda begin, end: scale.view(rows, 1)[begin:end]
    size = _power_of_two_at_least(rows / scale.shape[0])
    if scale.dim() != 2 or scale.shape != (-(-rows // size), -(-columns // size)):
        raise ReplayImpossible(
            f"{entry.name} of shape {list(scale.shape)} does not fit {head.name}, {rows} × {columns}"
        )
    return lambda begin, end: scale[torch.arange(begin, end) // size].repeat_interleave(size, 1)[:, :columns]


def _power_of_two_at_least(number: float) -> int:
    return 1 << max(0, math.ceil(math.log2(number)))


def _positions(checkpoint: Checkpoint, final: str, samples: list[CapturedSample]) -> _Positions:
    rows, top1, tokens, logprobs = [], [], [], []
    for sample, chosen in _chosen(samples, MAX_POSITIONS):
        rows.append(sample.states[chosen - 1, -1].float())
        tokens.append(torch.from_numpy(sample.token_ids)[chosen])
        top1 += [sample.top1[position] for position in chosen.tolist()]
        logprobs += [sample.logprobs[position] for position in chosen.tolist()]
    if not rows:
        raise ReplayImpossible("the server gave no log-probability of any position after the first")
    stacked = torch.cat(rows)
    return _Positions(
        rows=stacked if final == "post_norm" else _normed(checkpoint, stacked),
        top1=torch.tensor(top1),
        tokens=torch.cat(tokens),
        logprobs=torch.tensor(logprobs, dtype=torch.float32),
        counts=[len(part) for part in rows],
    )


def _chosen(
    samples: list[CapturedSample], count: int, margin: int = 0
) -> Iterator[tuple[CapturedSample, torch.Tensor]]:
    """Each sample with the positions to compare, ``count`` in all: those of short ones, an even selection of the
    longest. ``margin``: positions left out at both ends."""
    left = count
    in_order = sorted(samples, key=lambda sample: len(sample.token_ids))
    for number, sample in enumerate(in_order):
        length = len(sample.token_ids)
        if not len(sample.top1) == len(sample.logprobs) == len(sample.states) == length:
            raise ReplayImpossible(
                f"a prompt of {length} tokens has {len(sample.states)} rows of states, {len(sample.top1)} most likely "
                f"tokens and {len(sample.logprobs)} log-probabilities"
            )
        inner = range(1 + margin, length - margin)
        known = [t for t in inner if sample.top1[t] is not None and sample.logprobs[t] is not None]
        share = min(len(known), left // (len(in_order) - number))
        if share:
            left -= share
            yield sample, torch.tensor(known)[torch.linspace(0, len(known) - 1, share).round().long()]


def _as_they_are(checkpoint: Checkpoint, rows: torch.Tensor) -> torch.Tensor:
    return rows


def _normed(checkpoint: Checkpoint, rows: torch.Tensor) -> torch.Tensor:
    """RMSNorm of ``rows`` with the checkpoint's final norm, float32."""
    weight, epsilon = _norm(checkpoint)
    return rows.mul_(torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)).mul_(weight)


def _norm_undone(checkpoint: Checkpoint, rows: torch.Tensor) -> torch.Tensor:
    """What the final norm made ``rows`` of, when that was itself an output of it, float32."""
    weight, _ = _norm(checkpoint)
    # The direction is that of rows / weight, and the size that of an output: its own quotient has a mean square of one.
    direction = rows / weight
    return direction * torch.rsqrt((direction / weight).square().mean(-1, keepdim=True))


def _norm(checkpoint: Checkpoint) -> tuple[torch.Tensor, float]:
    """The factors of the final norm, float32 [hidden_size], and its epsilon."""
    config = checkpoint.config
    epsilon = next((config.raw[key] for key in EPSILON_KEYS if config.raw.get(key) is not None), None)
    try:
        entry = checkpoint.final_norm
    except UserError as error:
        raise ReplayImpossible(str(error)) from error
    bias = entry.name.removesuffix("weight") + "bias"
    if epsilon is None or bias in checkpoint.tensors or _is(config.model_type, MEAN_SUBTRACTING):
        raise ReplayImpossible(f"the final norm of a {config.model_type or 'model of unknown type'} is not an RMSNorm")
    if entry.dtype not in PLAIN_DTYPES or entry.shape != (config.hidden_size,):
        raise ReplayImpossible(f"{entry.name} is {entry.dtype} of shape {entry.shape}")
    weight = checkpoint.load(entry).float()
    return (1 + weight if _is(config.model_type, ONE_PLUS_WEIGHT) else weight), epsilon


def _norm_is_known(checkpoint: Checkpoint) -> bool:
    try:
        _norm(checkpoint)
    except ReplayImpossible:
        return False
    return True


def _is(model_type: str, types: tuple[str, ...]) -> bool:
    return model_type.removesuffix("_text") in types


def _logits(checkpoint: Checkpoint, head: TensorEntry, vocabulary: int, positions: _Positions) -> _Logits:
    """One block of the vocabulary and of the rows is in memory at a time."""
    count = len(positions.tokens)
    largest, log_sum, total = torch.full((count,), -torch.inf), torch.full((count,), -torch.inf), torch.zeros(count)
    of_top1, of_token = torch.full((count,), torch.nan), torch.full((count,), torch.nan)
    bias, scale = _bias(checkpoint, head), _scale(checkpoint, head)
    with safe_open(head.file, framework="pt") as file:
        weights = file.get_slice(head.name)
        for begin in range(0, vocabulary, VOCABULARY_BLOCK):
            end = min(begin + VOCABULARY_BLOCK, vocabulary)
            block = weights[begin:end].float()
            if scale is not None:
                block *= scale(begin, end)
            block = block.T
            for first in range(0, count, ROW_BLOCK):
                part = slice(first, first + ROW_BLOCK)
                logits = positions.rows[part] @ block
                if bias is not None:
                    logits += bias[begin:end]
                logits = _finished(logits, checkpoint.config.raw)
                largest[part] = torch.maximum(largest[part], logits.amax(1))
                total[part] += logits.sum(1)
                log_sum[part] = torch.logaddexp(log_sum[part], logits.logsumexp(1))
                for wanted, found in ((positions.top1, of_top1), (positions.tokens, of_token)):
                    inside = (wanted[part] >= begin) & (wanted[part] < end)
                    column = (wanted[part] - begin).clamp(0, end - begin - 1)
                    picked = logits.gather(1, column[:, None])[:, 0]
                    found[part] = torch.where(inside, picked, found[part])
    return _Logits(largest, total / vocabulary, log_sum, of_top1, of_token)


def _bias(checkpoint: Checkpoint, head: TensorEntry) -> torch.Tensor | None:
    entry = checkpoint.tensors.get(head.name.removesuffix("weight") + "bias")
    return None if entry is None else checkpoint.load(entry).float()


def _finished(logits: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """What some models do to their logits: scale them (Cohere multiplies, Granite divides), squash them (Gemma 2)."""
    if config.get("logit_scale"):
        logits = logits * config["logit_scale"]
    if config.get("logits_scaling"):
        logits = logits / config["logits_scaling"]
    if cap := config.get("final_logit_softcapping"):
        logits = torch.tanh(logits / cap) * cap
    return logits
