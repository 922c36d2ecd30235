"""The thresholds lie between right states and every fault, in models that hide the faults as well as models can."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.captured import capture
from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.server import self_check
from hidden_states.server.self_check import check_samples
from hidden_states.verification import reference, replay
from hidden_states.verification.samples import CapturedSample

LAYERS = (2, 8, 13)
NUM_LAYERS = 16

# Spread of the norm weights (of their logarithm where it is large), size of the head's weights.
MODELS = {
    "norm weights of one": (0.0, 0.02),
    "norm weights of nearly one": (0.02, 0.02),
    "usual": (0.3, 0.02),
    "flat logits": (0.3, 0.002),
    "large logits": (0.3, 0.5),
}


@functools.cache
def model(root: Path, name: str) -> Path:
    """A Llama whose layers change the states by about three percent each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = root / name.replace(" ", "-")
    spread, head = MODELS[name]
    torch.manual_seed(1)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rms_norm_eps=1e-5,
        )
    )
    with torch.no_grad():
        for key, weight in llama.named_parameters():
            if "norm" in key:
                weight.copy_(torch.exp(spread * torch.randn_like(weight)))
        llama.lm_head.weight.normal_(0, head)
        llama.model.embed_tokens.weight.normal_(0, 1)
    llama.bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@functools.cache
def captured(folder: Path, final: str) -> list[CapturedSample]:
    return capture(folder, final, LAYERS)


def changed(samples: list[CapturedSample], change: Callable[[torch.Tensor], torch.Tensor]) -> list[CapturedSample]:
    return [replace(sample, states=change(sample.states.clone())) for sample in samples]


def after_norm(folder: Path) -> list[CapturedSample]:
    return captured(folder, "post_norm")


def normed_twice(folder: Path) -> list[CapturedSample]:
    checkpoint = Checkpoint(folder)

    def norm_again(states: torch.Tensor) -> torch.Tensor:
        states[:, -1] = replay._normed(checkpoint, states[:, -1].float()).bfloat16()
        return states

    return changed(captured(folder, "post_norm"), norm_again)


def rolled(rows: int) -> Callable[[Path], list[CapturedSample]]:
    return lambda folder: changed(captured(folder, "pre_norm"), lambda states: states.roll(rows, 0))


def earlier_layer(folder: Path) -> list[CapturedSample]:
    return changed(captured(folder, "pre_norm"), lambda states: states[:, [0, 1, 2, 2]])


FAULTS = {
    "after the norm": after_norm,
    "normed twice": normed_twice,
    "rows late": rolled(1),
    "rows early": rolled(-1),
    "an earlier layer as the final one": earlier_layer,
}


def run(folder: Path, final: str, samples: list[CapturedSample], reference_key: str = "never") -> dict[str, Any]:
    settings = {
        "model": {"trust_remote_code": False},
        "self_check": {"reference": reference_key, "min_replay_agreement": 0.95},
    }
    return check_samples(Checkpoint(folder), SimpleNamespace(layers=LAYERS, final=final), settings, samples)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("final", ["pre_norm", "post_norm"])
def test_right_states_pass_with_room_to_spare(root, name, final, monkeypatch):
    folder = model(root, name)
    monkeypatch.setattr(replay, "ROUNDING", replay.ROUNDING / 4)
    monkeypatch.setattr(self_check, "LOGPROB_ALLOWANCE", 0)
    assert run(folder, final, captured(folder, final))["replay"]["agreement"] > 0.99


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_replay_alone_refuses_a_wrong_final_state(root, name, fault):
    folder = model(root, name)
    wrong = FAULTS[fault](folder)
    with pytest.raises(UserError, match="the capture is wrong") as refused:
        run(folder, "pre_norm", wrong)
    print(refused.value)


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_alone_refuse_an_earlier_layer(root, name):
    """Its most likely tokens are the right ones nearly always where layers change little."""
    with pytest.raises(UserError, match="its log-probabilities differ from the server's by .* in median, "):
        run(model(root, name), "pre_norm", earlier_layer(model(root, name)))


@pytest.mark.parametrize("name", MODELS)
def test_replay_alone_refuses_the_state_before_the_norm_where_that_after_it_is_asked_for(root, name):
    folder = model(root, name)
    with pytest.raises(UserError, match="the state before the final norm in place of the one after it"):
        run(folder, "post_norm", captured(folder, "pre_norm"))


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][0]])
def test_replay_alone_refuses_a_second_norm_where_the_state_after_one_is_asked_for(root, name):
    """With norm weights of one the second changes nothing."""
    folder = model(root, name)
    with pytest.raises(UserError, match="better explained as the state after the final norm, normed once more"):
        run(folder, "post_norm", normed_twice(folder))


@pytest.mark.parametrize("off", [(1, 8, 13), (3, 8, 13), (2, 7, 13), (2, 9, 13), (2, 8, 12), (2, 8, 14)])
def test_a_layer_one_off_is_nearest_to_its_own_though_it_differs_by_few_percent(root, off):
    """Below the threshold of the median, so that only the comparison with the neighbours sees it."""
    folder = model(root, "usual")
    figures = reference.check(folder, False, LAYERS, "pre_norm", capture(folder, "pre_norm", off))
    for slot, asked, found in zip(figures.slots, LAYERS, off, strict=False):
        assert slot.nearest == (None if asked == found else f"layer {found}")
        assert slot.median < self_check.MAX_REFERENCE_MEDIAN


def test_a_layer_that_changes_nothing_is_not_mistaken_for_its_neighbour(root, tmp_path):
    """Its state and the neighbour's are the same: whichever is nearer by chance says nothing."""
    from transformers import LlamaForCausalLM

    llama = LlamaForCausalLM.from_pretrained(model(root, "usual"), dtype=torch.bfloat16)
    with torch.no_grad():
        for index in (2, 7, 8, 12):
            for weight in (llama.model.layers[index].self_attn.o_proj, llama.model.layers[index].mlp.down_proj):
                weight.weight.mul_(0.02)
    llama.save_pretrained(tmp_path / "idle")
    figures = reference.check(
        tmp_path / "idle", False, LAYERS, "pre_norm", capture(tmp_path / "idle", "pre_norm", LAYERS)
    )
    assert [slot.nearest for slot in figures.slots] == [None] * 4
