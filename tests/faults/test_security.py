"""Who can reach a running server, its key and its files; and whose code it runs. Umask 000, the worst there is."""

import argparse
import contextlib
import json
import os
import shutil
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.fault_run import kill_everything, server_processes
from hidden_states import settings as settings_module
from hidden_states.commands import start_server
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server.lease import stop_servers
from hidden_states.server.record import Record, read_record
from hidden_states.server.slots import all_slots
from hidden_states.vocabulary.tokenizer import load_tokenizer

pytestmark = [pytest.mark.faults, pytest.mark.server]

REMOTE = """
from pathlib import Path

Path({marker!r}).touch()
from transformers import DeepseekV3Config, PreTrainedModel, PreTrainedTokenizerFast


class OwnConfig(DeepseekV3Config):
    model_type = "own"


class OwnModel(PreTrainedModel):
    config_class = OwnConfig


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@dataclass(frozen=True)
class Started:
    """A server started under umask 000, on a model that brings code of its own. ``marker``: made by that code."""

    folder: Path
    slots: Path
    results: Results
    record: Record
    marker: Path

    @property
    def processes(self) -> list[psutil.Process]:
        """The server's and its keeper's; not the test's own."""
        return [process for process in server_processes(self.slots) if process.pid != os.getpid()]


def give_own_code(model: Path, marker: Path) -> None:
    """A module in the model's folder that says so when it is run, and a configuration that names it."""
    (model / "own.py").write_text(REMOTE.format(marker=str(marker)))
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (model / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def started(demo_model: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("security")
    model, marker = folder / "model", folder / "own-code-ran"
    shutil.copytree(demo_model, model)
    give_own_code(model, marker)
    lines = (repository / "resources/conversations/demo.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "some.jsonl").write_text("\n".join(lines[:6]) + "\n", encoding="utf-8")
    content: dict[str, Any] = {
        "model": {"path": str(model), "trust_remote_code": False},
        "conversations": {"files": [str(folder / "some.jsonl")], "max_rejected": 1},
        "extraction": {"chunks": 1},
        "server": {"device": "cpu", "arguments": {"chunked_prefill_size": 128}},
        "self_check": {"reference": "always"},
    }
    (folder / "config.yaml").write_text(json.dumps(content))
    settings = settings_module.load([folder / "config.yaml"], repository / "config" / "schema.yaml")
    results, patch, before = Results(folder / "results"), pytest.MonkeyPatch(), os.umask(0)
    patch.setenv("HIDDEN_STATES_SLOT_DIR", str(folder / "slots"))
    try:
        tokenize_corpus(settings, model, results)
        start_server.run(settings, results, argparse.Namespace())
        record = read_record(all_slots("cpu", 1, 1)[0].record)
        yield Started(folder, folder / "slots", results, record, marker)
    finally:
        os.umask(before)
        stop_servers(results)
        kill_everything(folder / "slots")
        patch.undo()


def listening(process: psutil.Process) -> list[Any]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [found for found in process.net_connections("inet") if found.status == psutil.CONN_LISTEN]
    return []


def status_of(url: str, key: str | None, content: dict[str, Any] | None = None) -> int:
    headers = {"content-type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = json.dumps(content).encode() if content is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_every_process_of_the_server_listens_on_the_loopback_interface_only(started: Started) -> None:
    found = {(process.pid, process.name()): listening(process) for process in started.processes}
    addresses = {connection.laddr for connections in found.values() for connection in connections}
    assert int(started.record.url.rpartition(":")[2]) in {address.port for address in addresses}
    assert any(connections for (_, name), connections in found.items() if "scheduler" in name), "it has sockets too"
    assert {address.ip for address in addresses} == {"127.0.0.1"}, found


def test_the_sockets_between_its_processes_are_the_users_alone(started: Started) -> None:
    paths = {
        Path(connection.laddr)
        for process in started.processes
        for connection in process.net_connections("unix")
        if connection.laddr and connection.laddr.startswith("/")
    }
    assert paths, "there were none to look at"
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("key", [None, "", "wrong"])
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 0}}),
        ("/v1/completions", {"model": "x", "prompt": "hello", "max_tokens": 1}),
        ("/abort_request", {"rid": "", "abort_all": True}),
        ("/flush_cache", {}),
        ("/server_info", None),
        ("/v1/models", None),
    ],
)
def test_a_request_without_the_key_is_refused(started: Started, path: str, content: Any, key: str | None) -> None:
    assert status_of(started.record.url + path, key, content) == 401


def test_the_key_opens_the_server(started: Started) -> None:
    assert len(started.record.api_key) >= 32
    assert status_of(started.record.url + "/server_info", started.record.api_key) == 200


def test_the_key_is_on_no_command_line_in_no_environment_and_in_no_file_that_others_can_read(started: Started) -> None:
    key = started.record.api_key.encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                assert key not in (process / "cmdline").read_bytes()
                assert key not in (process / "environ").read_bytes()
    holders = [path for path in started.folder.rglob("*") if path.is_file() and key in path.read_bytes()]
    assert {path.parent for path in holders} == {started.slots}
    assert [stat.S_IMODE(path.stat().st_mode) for path in holders] == [0o600] * len(holders)
    assert stat.S_IMODE(started.slots.stat().st_mode) == 0o700


def test_dump_slots_and_log_are_the_users_alone(started: Started) -> None:
    dump = Path(started.record.dump)
    private = [*started.slots.iterdir(), *dump.iterdir(), Path(started.record.log)]
    assert stat.S_IMODE(dump.stat().st_mode) == stat.S_IMODE(started.slots.stat().st_mode) == 0o700
    assert {path: oct(stat.S_IMODE(path.stat().st_mode)) for path in private} == dict.fromkeys(private, "0o600")


@pytest.mark.parametrize(
    "tail", ["/../../outside", "..", ".", "a/b", "%2e%2e%2fx", "a\\b", "a\0b", "x" * 300, "ü", "a b", "\n"]
)
def test_a_rid_that_is_no_safe_file_name_makes_no_file(started: Started, tail: str) -> None:
    dump = Path(started.record.dump)
    before = {path.name for path in dump.iterdir()}
    body = {"input_ids": [1, 2, 3], "rid": started.record.rid_prefix + tail, "sampling_params": {"max_new_tokens": 0}}
    code = status_of(started.record.url + "/generate", started.record.api_key, body)
    time.sleep(0.3)
    made = {path.name for path in dump.iterdir()} - before - {"capture_stats.json"}
    if tail.strip(".") == "":
        # The prefix makes a name of it; it is one name, and a plain file's.
        assert code == 200 and made <= {f"{body['rid']}.safetensors"}
    else:
        assert made == set()
    assert not list(started.folder.rglob("outside*"))


def test_a_models_own_code_does_not_run_unless_the_configuration_says_so(started: Started) -> None:
    """The model's folder brings a module and a config.json that names it: tokenize, the server, and the self-check's
    replay and reference went through with trust_remote_code: false."""
    check = json.loads(started.results.ready.read_text())["self_check"]
    assert check["reference"]["slots"] and check["replay"]["agreement"] >= 0.95
    assert not started.marker.exists()


def test_a_tokenizers_own_code_is_refused_and_runs_where_it_is_trusted(demo_model: Path, tmp_path: Path) -> None:
    model, marker = tmp_path / "model", tmp_path / "own-code-ran"
    shutil.copytree(demo_model, model)
    give_own_code(model, marker)
    file = model / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}, "tokenizer_class": "OwnTokenizer"}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    with pytest.raises(UserError, match="trust_remote_code: true"):
        load_tokenizer(model, trust_remote_code=False)
    assert not marker.exists()
    load_tokenizer(model, trust_remote_code=True)
    assert marker.exists(), "the module would not have run at all"
