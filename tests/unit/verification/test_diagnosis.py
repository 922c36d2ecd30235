"""What figures look like, in words."""

import re
from dataclasses import replace

import numpy
import pytest
import torch
from hidden_states.verification.diagnosis import likeliest_fault
from hidden_states.verification.reference import ReferenceFigures, SlotFigures
from hidden_states.verification.replay import ReplayFigures
from hidden_states.verification.samples import CapturedSample

RIGHT = ReplayFigures(1.0, 100, 0.01, 0.1, 0.02, 0.1, 0.01, {"each state one row too late": 4.0}, False)


def sample(ids: list[int], seed: int) -> CapturedSample:
    states = torch.randn(len(ids), 2, 16, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return CapturedSample(numpy.array(ids), states, [None] * len(ids), [None] * len(ids))


SAMPLES = [sample([3, 4, 5, 6], 1), sample([7, 8, 9], 2)]


def slots(*nearest: str | None) -> ReferenceFigures:
    layers = (2, 4, 8)
    return ReferenceFigures(
        [SlotFigures(layer, 0.5, 1.0, 0.5, 0.5, other) for layer, other in zip(layers, nearest, strict=True)]
    )


@pytest.mark.parametrize(
    ("nearest", "words"),
    [
        (("layer 3", None, None), r"a layer off by one: slot 0 \(L = 2\) is nearest to layer 3\."),
        (("layer 4", "layer 2", None), r"slots swapped.*: slot 0 .* layer 4; slot 1 \(L = 4\) is nearest to layer 2\."),
        ((None, "the final state, pre-norm", None), r"slots swapped, or one slot in place of another: slot 1"),
        ((None, None, "the final state, post-norm"), r"the wrong side of the final norm: slot 2 \(L = 8\)"),
        ((None, None, "the final state, pre-norm"), r"the wrong side of the final norm"),
        (("the row before",) * 3, r"rows shifted by one: slot 0 .* the row before"),
        (("the row after",) * 3, r"rows shifted by one"),
    ],
)
def test_the_reference_tells_which_state_a_slot_holds(nearest, words):
    assert re.search(f"The figures look like {words}", likeliest_fault(SAMPLES, RIGHT, slots(*nearest)))


def test_replay_alone_tells_how_the_states_read():
    wrong = replace(RIGHT, agreement=0.0, asked=4.0, alternatives={"each state one row too late": 0.01})
    words = "The figures look like rows shifted by one: each state one row too late."
    assert likeliest_fault(SAMPLES, wrong, None) == words
    from_next = replace(SAMPLES[1], states=torch.cat([SAMPLES[0].states[-1:], SAMPLES[1].states[:-1]]))
    assert likeliest_fault([SAMPLES[0], from_next], wrong, None) == words


def test_tokens_that_are_often_right_point_to_another_layer_and_never_right_ones_to_nothing():
    wrong = replace(RIGHT, agreement=0.5, median_abs_logprob_difference=0.2, asked=0.2, alternatives={})
    words = "The figures look like the state of another layer in place of the final one."
    assert likeliest_fault(SAMPLES, wrong, None) == words
    assert likeliest_fault(SAMPLES, replace(wrong, agreement=0.01), None).startswith("The figures fit none")
    assert likeliest_fault(SAMPLES, RIGHT, slots(None, None, None)).startswith("The figures fit none")


def test_rows_that_stand_at_two_pasts_are_anothers_or_stale():
    other = replace(SAMPLES[1], states=SAMPLES[0].states[1:])
    assert likeliest_fault([SAMPLES[0], other], RIGHT, None).startswith(
        "Row 0 of a prompt of 3 tokens is also a row of another prompt"
    )
    doubled = SAMPLES[0].states.clone()
    doubled[3] = doubled[2]
    assert likeliest_fault([replace(SAMPLES[0], states=doubled)], RIGHT, None).startswith(
        "Row 3 of a prompt of 4 tokens is also a row of the same prompt"
    )


def test_equal_rows_of_equal_beginnings_are_right():
    longer = sample([3, 4, 5, 6, 7], 3)
    longer = replace(longer, states=torch.cat([SAMPLES[0].states, longer.states[4:]]))
    assert likeliest_fault([SAMPLES[0], longer], RIGHT, None).startswith("The figures fit none")
