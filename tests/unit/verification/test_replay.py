"""The logit replay passes right states and fails wrong ones."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.captured import LENGTHS, capture
from hidden_states.checkpoint import Checkpoint
from hidden_states.verification import replay
from hidden_states.verification.replay import ReplayImpossible, check
from hidden_states.verification.samples import CapturedSample
from safetensors.torch import load_file, save_file

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def copied_model(demo_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(demo_model, tmp_path / "model")


def changed(samples: list[CapturedSample], change: Change) -> list[CapturedSample]:
    return [replace(sample, states=change(sample.states.clone())) for sample in samples]


def edit_config(folder: Path, **keys: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def edit_tensors(folder: Path, change: Callable[[dict], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def normed(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    last = states[:, -1].float()
    states[:, -1] = (last * torch.rsqrt(last.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).bfloat16()
    return states


def test_right_states_agree_with_the_server(demo_model, samples):
    figures = check(Checkpoint(demo_model), "pre_norm", samples)
    assert figures.agreement >= 0.99
    assert figures.tokens == sum(length - 1 for length in LENGTHS)
    assert figures.median_abs_logprob_difference < 0.02
    assert figures.max_abs_logprob_difference < 0.2


def test_states_captured_after_the_norm_agree_when_they_are_said_to_be(demo_model):
    samples = capture(demo_model, "post_norm")
    assert check(Checkpoint(demo_model), "post_norm", samples).agreement >= 0.99
    assert check(Checkpoint(demo_model), "pre_norm", samples).agreement < 0.9


@pytest.mark.parametrize(
    ("change", "below"),
    [
        pytest.param(lambda states: states.roll(1, 0), 0.2, id="rows shifted by one"),
        pytest.param(lambda states: states.flip(1), 0.7, id="slots reversed"),
        pytest.param(lambda states: states[:, [0, 1, 2, 2]], 0.9, id="an earlier layer as the final one"),
        pytest.param(lambda states: states * 0, 0.2, id="zeros"),
        pytest.param(lambda states: states * torch.nan, 0.01, id="not a number"),
    ],
)
def test_wrong_states_do_not_agree(demo_model, samples, change, below):
    figures = check(Checkpoint(demo_model), "pre_norm", changed(samples, change))
    assert figures.agreement < below
    assert not figures.median_abs_logprob_difference < 0.1


def test_a_state_normed_twice_does_not_agree(demo_model, samples):
    checkpoint = Checkpoint(demo_model)
    weight = checkpoint.load(checkpoint.final_norm)
    figures = check(checkpoint, "pre_norm", changed(samples, lambda states: normed(states, weight)))
    assert figures.agreement < 0.9
    assert figures.median_abs_logprob_difference > 0.1


def test_blocks_of_rows_and_vocabulary_do_not_change_the_figures(demo_model, samples, monkeypatch):
    whole = check(Checkpoint(demo_model), "pre_norm", samples)
    monkeypatch.setattr(replay, "VOCABULARY_BLOCK", 100)
    monkeypatch.setattr(replay, "ROW_BLOCK", 13)
    blocks = check(Checkpoint(demo_model), "pre_norm", samples)
    assert (blocks.agreement, blocks.tokens) == (whole.agreement, whole.tokens)
    assert blocks.max_abs_logprob_difference == pytest.approx(whole.max_abs_logprob_difference, abs=1e-4)


def test_many_positions_are_thinned_out_but_short_prompts_stay_whole(demo_model, samples, monkeypatch):
    monkeypatch.setattr(replay, "MAX_POSITIONS", 60)
    figures = check(Checkpoint(demo_model), "pre_norm", samples)
    assert figures.tokens == 60
    assert figures.agreement >= 0.98


@pytest.mark.parametrize(
    ("keys", "finish"),
    [
        ({"logit_scale": 0.25}, lambda logits: logits * 0.25),
        ({"logits_scaling": 3.0}, lambda logits: logits / 3),
        ({"final_logit_softcapping": 5.0}, lambda logits: torch.tanh(logits / 5) * 5),
    ],
    ids=["logit_scale", "logits_scaling", "final_logit_softcapping"],
)
def test_what_a_model_does_to_its_logits_is_done_here_too(copied_model, samples, keys, finish):
    checkpoint = Checkpoint(copied_model)
    head, weight = checkpoint.load(checkpoint.lm_head).float(), checkpoint.load(checkpoint.final_norm)

    def said(sample: CapturedSample) -> CapturedSample:
        logits = finish(normed(sample.states.clone(), weight)[:, -1].float() @ head.T).log_softmax(-1)
        following = sample.token_ids[1:]
        return replace(sample, logprobs=[None, *(float(logits[t, token]) for t, token in enumerate(following))])

    edit_config(copied_model, **keys)
    finished = [said(sample) for sample in samples]
    assert check(Checkpoint(copied_model), "pre_norm", finished).median_abs_logprob_difference < 0.02
    assert check(checkpoint, "pre_norm", finished).median_abs_logprob_difference > 0.1


def test_gemma_multiplies_by_one_plus_the_norm_weight(copied_model, samples):
    edit_config(copied_model, model_type="gemma2")
    edit_tensors(copied_model, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"] - 1}))
    assert check(Checkpoint(copied_model), "pre_norm", samples).agreement >= 0.97


def test_a_model_with_tied_embeddings_uses_them(copied_model, samples):
    def tie(tensors: dict) -> None:
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")

    edit_tensors(copied_model, tie)
    edit_config(copied_model, tie_word_embeddings=True)
    assert check(Checkpoint(copied_model), "pre_norm", samples).agreement >= 0.99


def test_a_missing_or_quantised_head_is_no_pass(copied_model, samples):
    edit_tensors(copied_model, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].char()}))
    with pytest.raises(ReplayImpossible, match=r"lm_head.weight is I8 .* quantised"):
        check(Checkpoint(copied_model), "pre_norm", samples)
    edit_tensors(copied_model, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ReplayImpossible, match=r"lm_head.weight"):
        check(Checkpoint(copied_model), "pre_norm", samples)


@pytest.mark.parametrize("keys", [{"rms_norm_eps": None}, {"model_type": "cohere2"}])
def test_a_norm_of_another_kind_is_no_pass(copied_model, samples, keys):
    edit_config(copied_model, **keys)
    with pytest.raises(ReplayImpossible, match="RMSNorm"):
        check(Checkpoint(copied_model), "pre_norm", samples)


def test_a_server_that_says_nothing_is_no_pass(demo_model, samples):
    silent = [replace(sample, top1=[None] * len(sample.token_ids)) for sample in samples]
    with pytest.raises(ReplayImpossible, match="no log-probability"):
        check(Checkpoint(demo_model), "pre_norm", silent)
    with pytest.raises(ReplayImpossible, match="130 tokens has 129 rows"):
        check(Checkpoint(demo_model), "pre_norm", [replace(samples[2], states=samples[2].states[1:])])
