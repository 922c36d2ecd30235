"""What wrong captures look like: the likeliest fault, in words for a person."""

import torch
import xxhash

from hidden_states.verification.reference import ReferenceFigures
from hidden_states.verification.replay import ROW_SHIFTS, ReplayFigures
from hidden_states.verification.samples import CapturedSample

MORE_THAN_CHANCE = 0.1
"""Replay agreement above which rows stand where they belong: shifted ones, or those of another request, have 0.01."""


def likeliest_fault(
    samples: list[CapturedSample], replay: ReplayFigures | None, reference: ReferenceFigures | None
) -> str:
    """One sentence for a capture that was refused; the figures are those that there are."""
    return (
        _shifted_rows(replay)
        or _repeated_rows(samples)
        or _wrong_slots(reference)
        or (f"The figures look like {replay.mistaken_for}." if replay and replay.mistaken_for else None)
        or _another_layer(replay)
        or "The figures fit none of the known faults."
    )


def _shifted_rows(replay: ReplayFigures | None) -> str | None:
    """Asked first: the row that a shift brings from the next request is one of another, too."""
    if replay is None or replay.mistaken_for not in ROW_SHIFTS:
        return None
    return f"The figures look like rows shifted by one: {replay.mistaken_for}."


def _repeated_rows(samples: list[CapturedSample]) -> str | None:
    """Rows that stand at tokens with another past, which no causal model gives: of another request or forward."""
    first_seen: dict[bytes, tuple[bytes, int]] = {}
    for number, sample in enumerate(samples):
        past, rows = xxhash.xxh3_128(), sample.states[:, -1].contiguous().view(torch.int16).numpy()
        for position, row in enumerate(rows):
            past.update(sample.token_ids[position : position + 1].astype("<i8").tobytes())
            state = xxhash.xxh3_128_digest(row.tobytes())
            seen = first_seen.setdefault(state, (past.digest(), number))
            if seen[0] != past.digest():
                where = "the same prompt" if seen[1] == number else "another prompt"
                return (
                    f"Row {position} of a prompt of {sample.token_ids.size} tokens is also a row of {where}: rows of "
                    "another request, or stale ones of an earlier forward (a replayed CUDA graph?)."
                )
    return None


def _another_layer(replay: ReplayFigures | None) -> str | None:
    """Without a reference: the token is often the right one still, as it is from an earlier layer and not by chance."""
    if replay is None or replay.agreement < MORE_THAN_CHANCE or replay.median_abs_logprob_difference <= replay.rounding:
        return None
    return "The figures look like the state of another layer in place of the final one."


def _wrong_slots(reference: ReferenceFigures | None) -> str | None:
    if reference is None:
        return None
    wrong = {index: slot for index, slot in enumerate(reference.slots) if slot.nearest is not None}
    if not wrong:
        return None
    held = "; ".join(f"slot {index} (L = {slot.layer}) is nearest to {slot.nearest}" for index, slot in wrong.items())
    nearest = {slot.nearest for slot in wrong.values()}
    own = {f"layer {slot.layer}" for slot in reference.slots[:-1]}
    if len(nearest) == 1 and nearest <= {"the row before", "the row after"}:
        fault = "rows shifted by one"
    elif nearest <= {"the final state, pre-norm", "the final state, post-norm"} and set(wrong) == {
        len(reference.slots) - 1
    }:
        fault = "the wrong side of the final norm"
    elif nearest <= own | {"the final state, pre-norm", "the final state, post-norm"}:
        fault = "slots swapped, or one slot in place of another"
    else:
        fault = "a layer off by one"
    return f"The figures look like {fault}: {held}."
