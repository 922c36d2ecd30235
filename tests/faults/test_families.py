"""Every slot of every family's states against Transformers in float32, on the real server (docs/families.md)."""

from pathlib import Path

import pytest
from helpers.families import DEFAULT, EXPLICIT, Measured, Refused, measure
from helpers.family_models import DENSE, FAMILIES, NUM_LAYERS

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(1200)]

REFUSED = {
    "gemma3": "the layers of Gemma3ForCausalLM cannot be captured",
    "gpt_oss": "GptOssForCausalLM requires one of",
}
"""What stands in the way on the CPU."""


@pytest.mark.parametrize(("layers", "final"), [(DEFAULT, "pre_norm"), (EXPLICIT, "post_norm")])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in REFUSED])
def test_every_slot_is_what_transformers_computes(
    family: str, layers: tuple[int, ...], final: str, tmp_path: Path
) -> None:
    found = measure(family, layers, final, tmp_path)
    assert isinstance(found, Measured), found
    # L = n comes from the final norm, and is not asked of the model.
    assert found.read_back == [layer for layer in layers if layer < NUM_LAYERS]
    assert [slot["layer"] for slot in found.slots] == [*layers, NUM_LAYERS]
    for slot, bfloat16 in zip(found.slots, found.bfloat16, strict=True):
        # A layer off by one is more than 0.2 away, the other side of the norm more than 0.4.
        assert slot["median"] < (0.01 if family in DENSE else 0.015)
        assert slot["median"] < 1.2 * bfloat16, "worse than rounding"
        # Rounding sends a few tokens to other experts.
        assert slot["max"] < (0.03 if family in DENSE else 0.25)
    assert found.replay_agreement > 0.99


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_a_family_that_cannot_be_captured_is_refused_in_words(family: str, tmp_path: Path) -> None:
    found = measure(family, DEFAULT, "pre_norm", tmp_path)
    assert isinstance(found, Refused)
    assert REFUSED[family] in found.words
