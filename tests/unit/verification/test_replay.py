"""The logit replay passes right states and fails wrong ones."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import psutil
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


@pytest.mark.parametrize(
    ("name", "block"),
    [("weight_scale_inv", (128, 128)), ("weight_scale", (1, 128)), ("weight_scale", (1024, 128))],
    ids=["blocks", "rows", "one"],
)
def test_a_float8_head_is_multiplied_by_its_scale(copied_model, samples, monkeypatch, name, block):
    monkeypatch.setattr(replay, "VOCABULARY_BLOCK", 200)
    height, width = block

    def quantise(tensors: dict) -> None:
        weight = tensors["lm_head.weight"].float()
        # Rows of very different size, which one scale for all would lose.
        parts = weight.view(1024 // height, height, 128 // width, width)
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        tensors["lm_head.weight"] = (parts / scale).to(torch.float8_e4m3fn).view(1024, 128)
        tensors[f"lm_head.{name}"] = scale[:, 0, :, 0].contiguous()

    edit_tensors(copied_model, quantise)
    figures = check(Checkpoint(copied_model), "pre_norm", samples)
    assert figures.agreement > 0.9
    assert figures.median_abs_logprob_difference < 0.3
    edit_tensors(copied_model, lambda tensors: tensors.update({f"lm_head.{name}": tensors[f"lm_head.{name}"] * 3}))
    assert check(Checkpoint(copied_model), "pre_norm", samples).median_abs_logprob_difference > 0.5


def test_a_float8_head_without_a_fitting_scale_is_no_pass(copied_model, samples):
    edit_tensors(
        copied_model,
        lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.float8_e4m3fn)}),
    )
    with pytest.raises(ReplayImpossible, match=r"lm_head.weight is F8_E4M3 .* quantised"):
        check(Checkpoint(copied_model), "pre_norm", samples)
    edit_tensors(copied_model, lambda tensors: tensors.update({"lm_head.weight_scale_inv": torch.ones(3, 5)}))
    with pytest.raises(ReplayImpossible, match=r"weight_scale_inv of shape \[3, 5\] does not fit"):
        check(Checkpoint(copied_model), "pre_norm", samples)


def test_only_the_two_tensors_are_read(demo_model, samples, tmp_path):
    """The other shards of a sharded checkpoint are holes of many gigabytes, and then are gone."""
    folder = tmp_path / "sharded"
    shutil.copytree(demo_model, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    wanted = ("lm_head.weight", "model.norm.weight")
    save_file({name: tensors[name] for name in wanted}, folder / "model-00002-of-00002.safetensors")
    header = json.dumps({"big.weight": {"dtype": "BF16", "shape": [1 << 20, 1 << 19], "data_offsets": [0, 1 << 40]}})
    huge = folder / "model-00001-of-00002.safetensors"
    with open(huge, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + (1 << 40))
    places = {name: "model-00002-of-00002.safetensors" for name in wanted} | {"big.weight": huge.name}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    checkpoint = Checkpoint(folder)
    assert checkpoint.tensors["big.weight"].file == huge
    huge.unlink()
    assert check(checkpoint, "pre_norm", samples).agreement >= 0.99


def test_a_large_head_is_read_in_blocks(tmp_path, monkeypatch):
    """A head of 1 GiB, and memory for two blocks of it in float32."""
    rows, width = 1 << 18, 1 << 11
    header = {
        "lm_head.weight": {"dtype": "BF16", "shape": [rows, width], "data_offsets": [0, 2 * rows * width]},
        "model.norm.weight": {
            "dtype": "BF16",
            "shape": [width],
            "data_offsets": [2 * rows * width, 2 * (rows + 1) * width],
        },
    }
    text = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2 * (rows + 1) * width)
    keys = {"num_hidden_layers": 8, "hidden_size": width, "vocab_size": rows, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    uniform = float(torch.tensor(rows).log())
    sample = CapturedSample(numpy.arange(2), torch.ones(2, 2, width).bfloat16(), [None, 0], [None, -uniform])
    own = psutil.Process()
    before, most = own.memory_info().rss - own.memory_info().shared, 0
    finished = replay._finished

    def watched(logits: torch.Tensor, config: dict) -> torch.Tensor:
        nonlocal most
        most = max(most, own.memory_info().rss - own.memory_info().shared - before)
        return finished(logits, config)

    monkeypatch.setattr(replay, "_finished", watched)
    assert check(Checkpoint(tmp_path), "pre_norm", [sample]).median_abs_logprob_difference < 1e-3
    print(f"{most:,} bytes at most")
    assert most < 8 * replay.VOCABULARY_BLOCK * width + (32 << 20)


def test_states_after_the_norm_are_noticed_though_its_weights_are_near_one(copied_model):
    """The most likely tokens stay the same; the log-probabilities fit the other reading better."""
    generator = torch.Generator().manual_seed(3)
    near_one = (1 + 0.02 * torch.randn(128, generator=generator)).bfloat16()
    edit_tensors(copied_model, lambda tensors: tensors.update({"model.norm.weight": near_one}))
    right = check(Checkpoint(copied_model), "pre_norm", capture(copied_model, "pre_norm"))
    wrong = check(Checkpoint(copied_model), "pre_norm", capture(copied_model, "post_norm"))
    print(right, wrong)
    assert right.mistaken_for is None
    assert wrong.agreement > 0.95
    assert wrong.mistaken_for == "the state after the final norm in place of the one before it"
    right = check(Checkpoint(copied_model), "post_norm", capture(copied_model, "post_norm"))
    assert right.mistaken_for is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda states: states.roll(1, 0), "each state one row too late"),
        (lambda states: states.roll(-1, 0), "each state one row too early"),
        (lambda states: states[:, [3, 1, 2, 0]], "the final state in slot 0"),
        (lambda states: states[:, [0, 1, 3, 2]], "the final state in slot 2"),
    ],
)
def test_wrong_states_are_recognised_by_the_reading_that_explains_them(demo_model, samples, change, words):
    assert check(Checkpoint(demo_model), "pre_norm", changed(samples, change)).mistaken_for == words
    assert check(Checkpoint(demo_model), "pre_norm", samples).mistaken_for is None


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
