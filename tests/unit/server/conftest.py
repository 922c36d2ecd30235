"""A run with a model that has a shape and no use, and a stub in place of SGLang."""

import copy
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hidden_states.layout import Results
from hidden_states.server import self_check
from hidden_states.server.lease import stop_servers

STUB = Path(__file__).parents[2] / "helpers" / "stub_server.py"
SETTINGS: dict[str, Any] = {
    "model": {"path": "", "revision": None, "trust_remote_code": False},
    "capture": {"layers": "eagle3", "final": "pre_norm", "storage": "bfloat16", "buffer_memory_gib": 0.1},
    "server": {
        "device": "cpu",
        "slots": 1,
        "linger_seconds": 30,
        "startup_timeout_seconds": 30,
        "launcher": None,
        "arguments": {},
    },
    "self_check": {"prompts": 8, "reference": "auto", "min_replay_agreement": 0.95},
    "extraction": {"chunks": 2, "concurrency": 4, "max_failed": 0.0},
}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "run" / "results")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Changed freely by a test."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 32, "model_type": "llama"})
    )
    header = {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [32, 16], "data_offsets": [0, 1024]}}
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(1024))
    made = copy.deepcopy(SETTINGS)
    made["model"]["path"] = str(model)
    return made


@pytest.fixture
def stub(settings: dict[str, Any], results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Settings whose server is the stub (see its modes), in slots of the test's own; nothing is left running."""
    monkeypatch.setenv("HIDDEN_STATES_SLOT_DIR", str(tmp_path / "slots"))
    monkeypatch.setattr(self_check, "run_self_check", lambda *arguments: {"prompts": 8})

    def use(mode: str = "good", **server: Any) -> dict[str, Any]:
        settings["server"] |= {"launcher": f"{sys.executable} {STUB} {mode}"} | server
        return settings

    yield use
    stop_servers(results)
