"""The reference forward sees a fault in any slot."""

import functools
from dataclasses import replace

import psutil
import pytest
import torch
from helpers.captured import LAYERS, capture
from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.verification import reference
from hidden_states.verification.reference import ReferenceFigures, check, fits


def worst(figures: ReferenceFigures) -> float:
    return max(slot.median for slot in figures.slots)


@pytest.fixture(scope="module", autouse=True)
def one_load(demo_model):
    """Load the model once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_decoder", functools.cache(reference._decoder))
        yield


def test_right_states_are_close_in_every_slot(demo_model, samples):
    figures = check(demo_model, False, LAYERS, "pre_norm", samples)
    assert [slot.layer for slot in figures.slots] == [2, 4, 5, 8]
    assert worst(figures) < 0.03
    assert all(slot.median <= slot.max and slot.relative_error < 0.15 for slot in figures.slots)


def test_the_reference_is_hugging_faces_hidden_states(demo_model):
    """Float32 on both sides leaves nothing but the number of the layer and the side of the norm to be wrong about."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()
    ids = torch.arange(10, 40)
    with torch.no_grad():
        states = model(ids[None], output_hidden_states=True).hidden_states
    sample = replace(capture(demo_model)[0], token_ids=ids.numpy(), states=torch.stack([states[1][0], states[8][0]], 1))
    figures = check(demo_model, False, (1,), "post_norm", [sample])
    assert max(slot.max for slot in figures.slots) < 1e-4


def test_the_last_layer_may_be_an_auxiliary_one(demo_model, samples):
    twice = [replace(sample, states=sample.states[:, [0, 3, 3]]) for sample in samples]
    assert worst(check(demo_model, False, (2, 8), "pre_norm", twice)) < 0.03


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda states: states[:, [1, 0, 2, 3]], id="slots swapped"),
        pytest.param(lambda states: states[:, [0, 1, 1, 3]], id="a neighbouring layer"),
        pytest.param(lambda states: states.roll(1, 0), id="rows shifted"),
        pytest.param(lambda states: states * 0, id="zeros"),
        pytest.param(lambda states: states * torch.nan, id="not a number"),
    ],
)
def test_wrong_states_are_far_from_the_reference(demo_model, samples, change):
    wrong = [replace(sample, states=change(sample.states)) for sample in samples]
    assert not worst(check(demo_model, False, LAYERS, "pre_norm", wrong)) < 0.2


def test_layers_one_off_are_far_from_the_reference(demo_model, samples):
    assert worst(check(demo_model, False, (3, 4, 5), "pre_norm", samples)) > 0.2
    assert worst(check(demo_model, False, (2, 4, 6), "pre_norm", samples)) > 0.2


def test_the_other_side_of_the_norm_is_far_from_the_reference(demo_model, samples):
    figures = check(demo_model, False, LAYERS, "post_norm", samples)
    assert figures.slots[-1].median > 0.2
    assert max(slot.median for slot in figures.slots[:-1]) < 0.03


def test_one_zeroed_row_shows_in_the_largest_error(demo_model, samples):
    broken = samples[2].states.clone()
    broken[77, 1] = 0
    figures = check(demo_model, False, LAYERS, "pre_norm", [*samples[:2], replace(samples[2], states=broken)])
    assert figures.slots[1].max == pytest.approx(1)
    assert figures.slots[1].median < 0.03


def test_missing_rows_are_refused(demo_model, samples):
    short = replace(samples[1], states=samples[1].states[1:])
    with pytest.raises(UserError, match=r"\[39, 4, 128\], the reference \[40, 4, 128\]"):
        check(demo_model, False, LAYERS, "pre_norm", [short])


def test_a_model_fits_when_its_float32_weights_have_room(demo_model, tmp_path, monkeypatch):
    checkpoint = Checkpoint(demo_model)
    assert fits(checkpoint, False)[0]
    few = psutil.virtual_memory()._replace(available=1_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: few)
    suits, why = fits(checkpoint, False)
    assert not suits
    assert "GB are available" in why


def test_an_unknown_architecture_has_no_reference(demo_model, tmp_path):
    (tmp_path / "config.json").write_text(
        (demo_model / "config.json").read_text().replace('"deepseek_v3"', '"of_tomorrow"')
    )
    checkpoint = Checkpoint(tmp_path)
    suits, why = fits(checkpoint, False)
    assert not suits
    assert "does not know the architecture DeepseekV3ForCausalLM" in why
