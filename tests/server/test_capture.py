"""The plug-in inside the real SGLang server, on the DeepSeek-V3-shaped demo model; prefill in chunks of 128 tokens."""

import http.client
import json
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.capture_server import (
    DEVICE,
    FINGERPRINT,
    PREFIX,
    CaptureServer,
    Reference,
    capture_server,
    random_prompts,
    relative_errors,
)
from helpers.planted_faults import planted_faults
from hidden_states.store.checksums import check_state_file

pytestmark = pytest.mark.server

LAYERS = (2, 4, 5)
VOCABULARY = 1000
LARGEST_MEDIAN = 0.02
"""Of the relative error of a slot's tokens. The server computes in bfloat16; a wrong layer or row gives about 1."""


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaptureServer]:
    folder = tmp_path_factory.mktemp("capture")
    with capture_server(demo_model, folder, LAYERS, python_path=(planted_faults(folder / "faults"),)) as server:
        yield server


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Reference:
    return Reference(demo_model)


def assert_close(server: CaptureServer, reference: Reference, rid: str, ids: list[int]) -> None:
    errors = relative_errors(server.states(rid), reference.slots(ids, LAYERS))
    print(rid, len(ids), [f"{m:.4f} {w:.3f}" for m, w in zip(errors.median(0).values, errors.amax(0), strict=True)])
    assert errors.shape == (len(ids), len(LAYERS) + 1)
    assert errors.median(0).values.max() < LARGEST_MEDIAN


def test_the_plugin_announces_what_it_set_and_read_back(server: CaptureServer) -> None:
    content = json.loads((server.dump / "capture.json").read_text())
    assert content["layers_asked"] == content["layers_read_back"] == content["setter_argument"] == list(LAYERS)
    assert (content["model_class"], content["num_layers"], content["hidden_size"]) == ("DeepseekV3ForCausalLM", 8, 128)
    assert (content["dtype"], content["final"]) == ("bfloat16", "pre_norm")
    assert content["device"].startswith(DEVICE)
    assert Path(f"/proc/{content['pid']}").exists()
    assert not (server.dump / "capture.error.json").exists()


def test_every_slot_of_prompts_sent_at_once_is_what_transformers_computes(
    server: CaptureServer, reference: Reference
) -> None:
    """Lengths around the prefill chunk: several prompts share a forward, long ones span several."""
    prompts = random_prompts((1, 5, 127, 128, 129, 300, 600, 50, 60, 70), VOCABULARY)
    by_rid = {f"{PREFIX}many-{index}": ids for index, ids in enumerate(prompts)}
    server.generate_at_once(by_rid)
    for rid, ids in by_rid.items():
        assert_close(server, reference, rid, ids)


def test_a_prompt_alone_is_captured_and_the_same_bytes_come_again(server: CaptureServer, reference: Reference) -> None:
    (ids,) = random_prompts((200,), VOCABULARY, seed=1)
    for name in ("alone", "again"):
        server.generate(ids, PREFIX + name)
    assert_close(server, reference, PREFIX + "alone", ids)
    files = [server.wait_for(f"{PREFIX}{name}.safetensors").read_bytes() for name in ("alone", "again")]
    assert files[0] == files[1]


def test_the_header_says_whose_states_they_are(server: CaptureServer) -> None:
    (ids,) = random_prompts((17,), VOCABULARY, seed=2)
    server.generate(ids, PREFIX + "header")
    path = server.wait_for(PREFIX + "header.safetensors")
    header = check_state_file(path, None).header
    assert (header.fingerprint, header.layers, header.final) == (FINGERPRINT, LAYERS, "pre_norm")
    assert (header.num_tokens, header.hidden_size, header.dtype) == (17, 128, "BF16")
    assert path.stat().st_mode & 0o777 == 0o600


def test_capture_is_the_same_with_log_probabilities(server: CaptureServer, reference: Reference) -> None:
    """The self-check asks for them, and they take another path through the logits processor."""
    prompts = random_prompts((1, 90, 280), VOCABULARY, seed=3)
    by_rid = {f"{PREFIX}logprob-{index}": ids for index, ids in enumerate(prompts)}
    replies = server.generate_at_once(by_rid, return_logprob=True, logprob_start_len=0, top_logprobs_num=1)
    for rid, ids in by_rid.items():
        assert len(replies[rid]["meta_info"]["input_token_logprobs"]) == len(ids)
        assert_close(server, reference, rid, ids)


def test_rows_of_generated_tokens_are_left_out(server: CaptureServer, reference: Reference) -> None:
    (ids,) = random_prompts((40,), VOCABULARY, seed=4)
    server.generate(ids, PREFIX + "generated", sampling_params={"max_new_tokens": 4})
    assert_close(server, reference, PREFIX + "generated", ids)


def test_requests_without_our_prefix_leave_nothing(server: CaptureServer, reference: Reference) -> None:
    prompts = random_prompts((60, 61, 62), VOCABULARY, seed=5)
    rids = ("stranger", f"x{PREFIX}stranger", f"{PREFIX}among-strangers")
    server.generate_at_once(dict(zip(rids, prompts, strict=True)))
    assert_close(server, reference, rids[2], prompts[2])
    assert not [name for name in server.names() if "stranger" in name and not name.startswith(rids[2])]


@pytest.mark.parametrize("rid", ["../outside", "a/b", "a b", "a\n", "ü", "x" * 300, "a\0b"])
def test_a_rid_that_is_no_safe_file_name_is_not_captured(server: CaptureServer, rid: str) -> None:
    before = server.names() - {"capture_stats.json"}
    server.generate([1, 2, 3], PREFIX + rid)
    time.sleep(0.2)
    assert {n for n in server.names() if not n.startswith("capture_stats")} == before
    assert not (server.dump.parent / "outside.safetensors").exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise-in-take", "capture_failed"),
        ("raise-in-plan", "capture_failed"),
        ("short", "capture_failed"),
        ("no-norm", "not_captured"),
    ],
)
def test_a_fault_in_the_capture_fails_its_requests_and_no_more(
    server: CaptureServer, reference: Reference, fault: str, reason: str
) -> None:
    (ids, later) = random_prompts((300, 30), VOCABULARY, seed=6)
    rid = f"{PREFIX}{fault}"
    server.generate(ids, rid)
    error = server.error(rid)
    assert (error["rid"], error["reason"]) == (rid, reason)
    server.generate(later, f"{PREFIX}after-{fault[::-1]}")
    assert_close(server, reference, f"{PREFIX}after-{fault[::-1]}", later)
    assert not [name for name in server.names() if name.startswith(f"{rid}.") and not name.endswith(".error.json")]


def test_a_prompt_that_the_scheduler_aborts_leaves_no_file(server: CaptureServer) -> None:
    """Longer than the server takes, shorter than the context: one token of it still runs under its rid."""
    (ids,) = random_prompts((8188,), VOCABULARY, seed=7)
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.generate(ids, PREFIX + "too-long")
    assert refused.value.code == 400
    time.sleep(0.5)
    assert not [name for name in server.names() if "too-long" in name]


def test_a_client_that_goes_away_in_mid_prefill_leaves_no_file(server: CaptureServer) -> None:
    (ids,) = random_prompts((6000,), VOCABULARY, seed=8)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    body = {"input_ids": ids, "rid": PREFIX + "gone", "sampling_params": {"max_new_tokens": 0}}
    connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
    end = time.monotonic() + 20
    while not any("gone" in name for name in server.names()) and time.monotonic() < end:
        time.sleep(0.02)
    assert any("gone" in name for name in server.names()), "its prefill did not begin"
    connection.close()
    server.generate([1, 2, 3], PREFIX + "witness")
    server.wait_for(PREFIX + "witness.safetensors")
    time.sleep(1)
    assert PREFIX + "gone.safetensors" not in server.names()


def test_figures_of_the_capture_are_kept(server: CaptureServer) -> None:
    server.generate([1, 2, 3], PREFIX + "figures")
    server.wait_for(PREFIX + "figures.safetensors")
    time.sleep(3)
    stats = json.loads((server.dump / "capture_stats.json").read_text())
    assert stats["files"] > 0 and stats["bytes"] > 1024 * stats["files"] and stats["rows"] >= stats["files"]
    assert 0 < stats["hook_seconds"] < 60 and stats["wait_seconds"] < 1
    assert 0 < stats["buffer_bytes"] <= 4 << 30
