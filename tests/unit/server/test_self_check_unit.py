"""What the self-check decides from figures, and what it says when a server does not answer as it should."""

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.captured import LAYERS, capture
from helpers.states import FINGERPRINT, HIDDEN_SIZE, header_for, states_for, write_state
from helpers.states import LAYERS as STATE_LAYERS
from helpers.token_files import write_token_file
from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server import self_check
from hidden_states.server.self_check import check_samples, run_self_check
from hidden_states.verification import reference, replay
from hidden_states.verification.samples import CapturedSample
from safetensors.torch import load_file, save_file

PROMPTS = [[11, 12, 13, 14, 15], [21, 22, 23], [31, 32, 33, 34, 35, 36, 37, 38, 39]]
SPECIFICATION: Any = SimpleNamespace(layers=LAYERS, final="pre_norm")


def checking(reference_key: str = "auto") -> dict[str, Any]:
    return {
        "model": {"trust_remote_code": False},
        "extraction": {"chunks": 1},
        "self_check": {"prompts": 6, "reference": reference_key, "min_replay_agreement": 0.95},
    }


@pytest.fixture(scope="module")
def samples(demo_model: Path) -> list[CapturedSample]:
    return capture(demo_model)


@pytest.fixture
def headless(demo_model: Path, tmp_path: Path) -> Checkpoint:
    """The demo model with a head of packed integers, which nobody here can unpack."""
    folder = shutil.copytree(demo_model, tmp_path / "headless")
    tensors = load_file(folder / "model.safetensors")
    packed = tensors.pop("lm_head.weight")
    tensors["lm_head.weight_packed"] = torch.zeros(packed.shape[0], packed.shape[1] // 8, dtype=torch.int32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Checkpoint(folder)


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "fits", lambda *arguments: (False, "the reference needs 4000.0 GB of memory"))


def test_right_states_are_proven_by_both(demo_model, samples):
    figures = check_samples(Checkpoint(demo_model), SPECIFICATION, checking(), samples)
    assert figures["proven"]
    assert set(figures["replay"]) == {
        "agreement",
        "tokens",
        "median_abs_logprob_difference",
        "max_abs_logprob_difference",
    }
    assert [slot["layer"] for slot in figures["reference"]["slots"]] == [2, 4, 5, 8]


def test_a_model_too_large_for_a_reference_is_proven_by_replay(demo_model, samples, no_reference):
    figures = check_samples(Checkpoint(demo_model), SPECIFICATION, checking(), samples)
    assert figures["proven"]
    assert figures["reference"] == {"skipped": "the reference needs 4000.0 GB of memory"}


def test_without_a_head_that_can_be_read_the_reference_is_the_proof(demo_model, headless, samples, monkeypatch):
    check = reference.check
    monkeypatch.setattr(reference, "check", lambda folder, *arguments: check(demo_model, *arguments))
    figures = check_samples(headless, SPECIFICATION, checking(), samples)
    assert figures["proven"]
    assert "lm_head.weight" in figures["replay"]["impossible"]


def test_a_server_that_nothing_proves_is_refused(headless, samples, no_reference):
    with pytest.raises(
        UserError, match=r"nothing proves .* logit replay cannot run .*lm_head\.weight.*4000"
    ) as refused:
        check_samples(headless, SPECIFICATION, checking(), samples)
    assert "set config key self_check.reference to never" in str(refused.value)


def test_who_says_never_goes_on_unproven_and_it_is_written_down(headless, samples, caplog):
    with caplog.at_level(logging.WARNING):
        figures = check_samples(headless, SPECIFICATION, checking("never"), samples)
    assert figures["proven"] is False
    assert "lm_head.weight" in figures["replay"]["impossible"]
    assert "NOTHING PROVES" in caplog.text


def test_a_reference_that_is_demanded_and_cannot_run_is_an_error(demo_model, samples, no_reference):
    with pytest.raises(UserError, match=r"self_check\.reference is always, but it cannot run: .* 4000"):
        check_samples(Checkpoint(demo_model), SPECIFICATION, checking("always"), samples)


def put(slot: int, state: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[:, slot] = state(states)
        return states

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda states: states[:, [1, 0, 2, 3]], "slots swapped", id="slots swapped"),
        pytest.param(put(0, lambda states: states[:, 3]), "slots swapped.*the final state", id="final in slot 0"),
        pytest.param(put(3, lambda states: states[:, 2]), "slots swapped.*layer 5", id="wrong final layer"),
        pytest.param(lambda states: states.roll(1, 0), "rows shifted by one|is also a row of", id="rows shifted"),
    ],
)
def test_wrong_states_are_refused_with_what_they_look_like(demo_model, samples, change, words):
    wrong = [replace(sample, states=change(sample.states.clone())) for sample in samples]
    with pytest.raises(UserError, match=f"the capture is wrong: .*{words}.*Nothing was extracted") as refused:
        check_samples(Checkpoint(demo_model), SPECIFICATION, checking(), wrong)
    print(refused.value)


def test_rows_of_another_prompt_are_recognised_without_a_reference(demo_model, samples):
    wrong = [*samples[:1], replace(samples[1], states=samples[2].states[:40].clone()), *samples[2:]]
    with pytest.raises(UserError, match="Row .* of a prompt of .* tokens is also a row of another prompt"):
        check_samples(Checkpoint(demo_model), SPECIFICATION, checking("never"), wrong)


def test_rows_of_another_request_in_one_short_prompt_are_refused_without_a_reference(demo_model):
    """One row in twenty is wrong: the figures over all tokens are as good as is asked for."""
    samples = capture(demo_model, lengths=(20, 20, 400))
    wrong = [samples[0], replace(samples[1], states=samples[0].states.clone()), samples[2]]
    assert replay.check(Checkpoint(demo_model), "pre_norm", wrong).agreement > 0.95
    with pytest.raises(UserError, match="in median over one prompt.*is also a row of another prompt"):
        check_samples(Checkpoint(demo_model), SPECIFICATION, checking("never"), wrong)
    assert check_samples(Checkpoint(demo_model), SPECIFICATION, checking("never"), samples)["proven"]


class StubServer:
    """Answers ``/generate`` and writes states as the plug-in would; ``status``, ``spoil``
    and ``litters`` change what it does."""

    def __init__(self, dump: Path) -> None:
        self.dump, self.status, self.spoil, self.litters = dump, 200, None, False
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = stub.answer(body) if stub.status == 200 else {"error": "no such thing"}
                content = json.dumps(answer).encode()
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                """It would go to the terminal."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, rid = body["input_ids"], body["rid"]
        if rid.startswith("hs-") and self.spoil is not None:
            self.spoil(rid, ids)
        elif rid.startswith("hs-") or self.litters:
            self.write(rid, ids, ids)
        entries = [[-0.5, token, None] for token in ids]
        return {
            "meta_info": {
                "input_token_logprobs": [[None, ids[0], None], *entries[1:]],
                "input_top_logprobs": [None, *([entry] for entry in entries[1:])],
            }
        }

    def write(self, rid: str, ids: list[int], written: list[int]) -> None:
        header = header_for(written)
        path = self.dump / f"{rid}.safetensors"
        temporary = path.with_suffix(".tmp")
        write_state(temporary, written, header, states_for(header))
        temporary.rename(path)

    def fail(self, rid: str, reason: str, detail: str) -> None:
        temporary = self.dump / f"{rid}.tmp"
        temporary.write_text(json.dumps({"reason": reason, "detail": detail}))
        temporary.rename(self.dump / f"{rid}.error.json")

    def leased(self, alive: bool = True) -> Any:
        specification = SimpleNamespace(
            model=Path("/nonexistent"),
            fingerprint=FINGERPRINT,
            layers=STATE_LAYERS,
            final="pre_norm",
            dtype="BF16",
            hidden_size=HIDDEN_SIZE,
        )
        return SimpleNamespace(
            url=f"http://127.0.0.1:{self.http.server_port}",
            headers={},
            rid_prefix="hs-",
            dump=self.dump,
            specification=specification,
            max_req_input_len=100,
            alive=lambda: alive,
            why_died=lambda: "the server has died of grief",
        )


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """The states that it writes mean nothing, so they are not judged."""
    monkeypatch.setattr(self_check, "Checkpoint", lambda folder: None)
    monkeypatch.setattr(self_check, "check_samples", lambda *arguments: {"samples": arguments[-1]})
    (tmp_path / "dump").mkdir()
    server = StubServer(tmp_path / "dump")
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "results")
    write_token_file(found, "0000", PROMPTS)
    return found


def run(server: Any, results: Results) -> dict[str, Any]:
    return run_self_check(server, checking(), results, {"chunked_prefill_size": 6})


def test_every_prompt_is_captured_and_nothing_is_left(stub, results):
    figures = run(stub.leased(), results)
    assert figures["prompts"] == len(figures["samples"]) == 6
    assert figures["longest"] == 2 + len(PROMPTS[-1])  # the beginning of the first, then the last
    assert list(stub.dump.iterdir()) == []
    for sample in figures["samples"]:
        assert sample.states.shape == (sample.token_ids.size, len(STATE_LAYERS) + 1, HIDDEN_SIZE)
        assert sample.top1 == [None, *sample.token_ids[1:].tolist()]
        assert sample.logprobs == [None, *[-0.5] * (sample.token_ids.size - 1)]


def test_a_report_of_the_plug_in_is_passed_on(stub, results):
    stub.spoil = lambda rid, ids: stub.fail(rid, "rows_missing", "4 rows of 5; the prefix cache is on")
    with pytest.raises(UserError, match="was not captured: rows_missing: 4 rows of 5; the prefix cache is on"):
        run(stub.leased(), results)


def test_a_full_dump_directory_is_explained(stub, results):
    stub.spoil = lambda rid, ids: stub.fail(rid, "disk_full", "")
    with pytest.raises(UserError, match="no space left: the state of a prompt needs .* bytes"):
        run(stub.leased(), results)


def test_states_of_other_tokens_are_refused(stub, results):
    stub.spoil = lambda rid, ids: stub.write(rid, ids, [*ids[:-1], ids[-1] + 1])
    with pytest.raises(UserError, match="the state of a prompt of 5 tokens is wrong: .*key"):
        run(stub.leased(), results)


def test_an_answer_without_states_is_refused(stub, results, monkeypatch):
    monkeypatch.setattr(self_check, "FILE_TIMEOUT_SEC", 0.1)
    stub.spoil = lambda rid, ids: None
    with pytest.raises(UserError, match="the server answered, but wrote no state within"):
        run(stub.leased(), results)


def test_a_stranger_that_leaves_something_is_refused(stub, results):
    stub.litters = True
    with pytest.raises(UserError, match=r"a request that was not tagged left stranger-.*\.safetensors"):
        run(stub.leased(), results)


def test_a_refused_prompt_gives_the_servers_words(stub, results):
    stub.status = 400
    with pytest.raises(UserError, match="the server refused a prompt of 5 tokens: HTTP 400: .*no such thing"):
        run(stub.leased(), results)


def test_a_server_that_died_is_named_with_its_reason(stub, results):
    stub.http.shutdown()
    stub.http.server_close()
    with pytest.raises(UserError, match="no answer to a prompt of 5 tokens: the server has died of grief"):
        run(stub.leased(alive=False), results)


def test_a_corpus_longer_than_the_server_takes_is_refused_before_anything_is_sent(stub, results):
    server = stub.leased()
    server.max_req_input_len = 9
    stub.status = 500
    with pytest.raises(UserError, match=r"longest sample has 9 tokens, but the server takes fewer than 9"):
        run(server, results)
