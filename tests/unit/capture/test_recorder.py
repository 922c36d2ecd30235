"""Rows of forwards become the right file of each request."""

import time
from pathlib import Path

import pytest
import torch
from helpers.forwards import Forwards, assert_captured, expected_states, names, reason
from hidden_states.capture import recorder
from safetensors.torch import load_file


@pytest.mark.parametrize("packed", [False, True])
def test_requests_of_one_forward_get_their_own_rows(forwards: Forwards, packed: bool) -> None:
    forwards.packed = packed
    first, stranger, second = forwards.request("hs-a", 3), forwards.request("x", 5), forwards.request("hs-b", 2)
    assert forwards.run((first, 0, 3), (stranger, 0, 5), (second, 0, 2)) == "logits"
    assert_captured(forwards, "hs-a", 3)
    assert_captured(forwards, "hs-b", 2)
    assert names(forwards) == {"hs-a.safetensors", "hs-b.safetensors"}


def test_a_prompt_is_assembled_over_several_forwards(forwards: Forwards) -> None:
    long, short = forwards.request("hs-long", 300), forwards.request("hs-short", 1)
    forwards.run((long, 0, 128))
    forwards.run((long, 128, 128), (short, 0, 1))
    assert not (forwards.dump / "hs-long.safetensors").exists()
    forwards.run((long, 256, 44))
    assert_captured(forwards, "hs-long", 300)
    assert_captured(forwards, "hs-short", 1)


def test_a_prompt_begun_again_is_captured_from_its_start(forwards: Forwards) -> None:
    """The scheduler retracts a request in mid-prefill when memory is short."""
    request = forwards.request("hs-a", 20)
    forwards.run((request, 0, 12))
    forwards.run((request, 0, 15))
    forwards.run((request, 15, 5))
    assert_captured(forwards, "hs-a", 20)


def test_a_rid_used_again_for_another_prompt_gets_that_prompt(forwards: Forwards) -> None:
    forwards.run((forwards.request("hs-a", 20), 0, 12))
    forwards.run((forwards.request("hs-a", 7), 0, 7))
    assert_captured(forwards, "hs-a", 7)
    time.sleep(0.1)
    assert names(forwards) == {"hs-a.safetensors"}


def test_layer_n_is_the_state_before_the_final_norm(make_forwards) -> None:
    forwards = make_forwards(layers=(2, 8))
    forwards.run((forwards.request("hs-a", 4), 0, 4))
    states = load_file(forwards.wait_for("hs-a.safetensors"))["hidden_states"].float()
    assert torch.equal(states[:, 1], states[:, 2]) and torch.equal(states[:, 0], expected_states(4)[:, 0])


def test_post_norm_takes_the_other_side_of_the_norm(make_forwards) -> None:
    forwards = make_forwards(final="post_norm")
    forwards.run((forwards.request("hs-a", 4), 0, 4))
    states = load_file(forwards.wait_for("hs-a.safetensors"))["hidden_states"].float()
    assert torch.equal(states[:, 2], -expected_states(4)[:, 2])


def test_decode_forwards_and_generated_tokens_are_left_out(forwards: Forwards) -> None:
    request = forwards.request("hs-a", 4)
    forwards.run((request, 0, 4))
    assert_captured(forwards, "hs-a", 4)
    (forwards.dump / "hs-a.safetensors").unlink()
    forwards.run((request, 4, 1), extend=False)
    request.output_ids = [1]
    forwards.run((request, 4, 1))
    forwards.run((request, 0, 5))
    time.sleep(0.1)
    assert names(forwards) == set()


def test_an_aborted_request_leaves_nothing(forwards: Forwards) -> None:
    request = forwards.request("hs-a", 20)
    forwards.run((request, 0, 12))
    forwards.wait_for("hs-a.0.tmp")
    request.to_finish = "abort"
    forwards.run((request, 12, 1))
    time.sleep(0.1)
    assert names(forwards) == set()


@pytest.mark.parametrize("first", [4, 12])
def test_rows_that_a_prefix_cache_skipped_fail_the_request(forwards: Forwards, first: int) -> None:
    cached, other = forwards.request("hs-a", 20), forwards.request("hs-b", 3)
    if first == 12:
        forwards.run((cached, 0, 8))
    forwards.run((cached, first, 20 - first), (other, 0, 3))
    assert reason(forwards, "hs-a") == "rows_missing"
    assert_captured(forwards, "hs-b", 3)
    assert names(forwards) == {"hs-a.error.json", "hs-b.safetensors"}


def test_a_forward_without_states_fails_its_requests(forwards: Forwards) -> None:
    """A replayed CUDA graph runs no hook."""
    request = forwards.request("hs-a", 3)
    forwards.hooks_run = False
    forwards.run((request, 0, 3))
    assert reason(forwards, "hs-a") == "not_captured"


@pytest.mark.parametrize("fault", ["short", "narrow", "missing"])
def test_states_of_the_wrong_shape_fail_their_requests_only(forwards: Forwards, fault: str) -> None:
    change = {"short": lambda aux: [a[:-1] for a in aux], "narrow": lambda aux: [a[:, :-1] for a in aux]}
    forwards._pack = change.get(fault, lambda aux: aux[1:])
    assert forwards.run((forwards.request("hs-a", 3), 0, 3)) == "logits"
    assert reason(forwards, "hs-a") == "capture_failed"
    del forwards._pack
    forwards.run((forwards.request("hs-b", 3), 0, 3))
    assert_captured(forwards, "hs-b", 3)


def test_a_batch_that_cannot_be_read_fails_our_requests_and_the_server_goes_on(forwards: Forwards) -> None:
    broken = forwards.request("hs-a", 3)
    del broken.to_finish
    assert forwards.run((broken, 0, 3), (forwards.request("x", 1), 0, 1)) == "logits"
    assert reason(forwards, "hs-a") == "capture_failed"


@pytest.mark.parametrize("rid", ["hs-../../a", "hs-a/b", "hs-a\n", "hs-" + "a" * 300, "hs-ä"])
def test_an_unsafe_rid_is_not_captured(forwards: Forwards, rid: str, tmp_path: Path) -> None:
    assert forwards.run((forwards.request(rid, 3), 0, 3)) == "logits"
    time.sleep(0.1)
    assert names(forwards) == set()


def test_a_request_that_does_not_go_on_is_forgotten(forwards: Forwards, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards.run((forwards.request("hs-a", 20), 0, 12))
    forwards.wait_for("hs-a.0.tmp")
    monkeypatch.setattr(recorder, "ABANDONED_SECONDS", 0.01)
    time.sleep(0.05)
    forwards.run((forwards.request("hs-b", 3), 0, 3))
    assert_captured(forwards, "hs-b", 3)
    time.sleep(0.1)
    assert names(forwards) == {"hs-b.safetensors"}
