"""The lease with the real server: self-check, ready.json, reuse, a death, the end; and a capture that lies."""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hidden_states import settings as settings_module
from hidden_states.commands import start_server, stop_server
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server import lease as lease_module
from hidden_states.server.lease import lease, stop_servers
from hidden_states.server.processes import group_members
from hidden_states.server.record import read_record
from hidden_states.server.slots import all_slots
from hidden_states.server.specification import build

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def run(demo_model: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory):
    """Settings and results of a run, tokenized, with some of the demo's conversations."""
    folder = tmp_path_factory.mktemp("lease")
    corpus = folder / "some.jsonl"
    lines = (repository / "resources/conversations/demo.jsonl").read_text(encoding="utf-8").splitlines()
    corpus.write_text("\n".join(lines[:12]) + "\n", encoding="utf-8")
    config = folder / "config.yaml"
    content: dict[str, Any] = {
        "model": {"path": str(demo_model)},
        "conversations": {"files": [str(corpus)], "max_rejected": 1},
        "extraction": {"chunks": 2},
        "server": {"device": "cpu", "arguments": {"chunked_prefill_size": 128}},
    }
    config.write_text(json.dumps(content))
    settings = settings_module.load([config], repository / "config" / "schema.yaml")
    results = Results(folder / "results")
    tokenize_corpus(settings, demo_model, results)
    patch = pytest.MonkeyPatch()
    patch.setenv("HIDDEN_STATES_SLOT_DIR", str(folder / "slots"))
    yield settings, results
    stop_servers(results)
    patch.undo()


def test_a_proven_server_is_reused_and_proven_again_after_its_death(run):
    settings, results = run
    specification = build(settings, results)
    start_server.run(settings, results, argparse.Namespace())
    ready = json.loads(results.ready.read_text())
    assert ready["layers_asked"] == ready["layers_read_back"] == list(specification.layers)
    assert ready["fingerprint"] == specification.fingerprint
    assert ready["self_check"]["replay"]["agreement"] >= 0.95
    assert all(slot["median"] <= 0.05 for slot in ready["self_check"]["reference"]["slots"])
    record = read_record(all_slots("cpu", 1, 1)[0].record)
    begun = time.monotonic()
    with lease(settings, results, specification, 10) as server:
        assert time.monotonic() - begun < 5, "a warm server should be there at once"
        assert server.rid_prefix == record.rid_prefix
        assert [path.name for path in server.dump.glob("*.safetensors")] == []
        log = Path(record.log).read_text(errors="replace")
        assert "api_key" in log and record.api_key not in log
        os.killpg(record.server_pid, signal.SIGKILL)
        while server.alive():
            time.sleep(0.1)
        assert "SIGKILL" in server.why_died()
        server.restart()
        assert server.alive() and server.rid_prefix != record.rid_prefix
        record = read_record(all_slots("cpu", 1, 1)[0].record)
    start_server.run(settings, results, argparse.Namespace())
    again = json.loads(results.ready.read_bytes())
    assert {key: again[key] for key in again if key != "self_check"} == {
        key: ready[key] for key in ready if key != "self_check"
    }
    stop_server.run(settings, results, argparse.Namespace())
    assert group_members(record.server_pid, record.server_start) == []


def test_a_server_that_captures_something_else_is_refused_and_ended(run, monkeypatch):
    """The plug-in is told another final state than the one that the settings ask for."""
    settings, results = run
    results.ready.unlink(missing_ok=True)
    real = lease_module.environment
    monkeypatch.setattr(
        lease_module, "environment", lambda *arguments: real(*arguments) | {"SGLANG_HS_FINAL": "post_norm"}
    )
    with (
        pytest.raises(UserError, match="self-check: .*post_norm"),
        lease(settings, results, build(settings, results), 10),
    ):
        pass
    assert stop_servers(results) == 0, "it should be gone already"
