"""The main job on the real server: conversations in, a verified dataset out, damaged and repaired."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest
from helpers.snakemake_run import Workflow

pytestmark = [pytest.mark.workflow, pytest.mark.server]


@pytest.fixture(scope="module")
def finished(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """A finished run of two chunks over some of the demo's conversations."""
    folder = tmp_path_factory.mktemp("run")
    lines = (repository / "resources" / "conversations" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    corpus = folder / "corpus.jsonl"
    corpus.write_text("\n".join([*lines[:12], '{"messages": []}']), encoding="utf-8")
    workflow = Workflow(repository, folder, None)
    workflow.environment["HIDDEN_STATES_SLOT_DIR"] = str(tmp_path_factory.mktemp("slots"))
    workflow.config |= {
        "conversations": {"files": [str(corpus)]},
        "extraction": {"chunks": 2},
        "server": {"device": "cpu", "arguments": {"chunked_prefill_size": 128}},
    }
    code, output = workflow.run("all")
    assert code == 0, output
    return workflow


def states(workflow: Workflow) -> dict[Path, tuple[int, int]]:
    files = workflow.folder.glob("results/states/*/*/*.safetensors")
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_totals_add_up(finished):
    results = finished.folder / "results"
    summary = json.loads((results / "tokens" / "summary.json").read_text())
    assert summary["accepted"] + summary["rejected"] == summary["rows_read"] == 13
    manifests = [pyarrow.parquet.read_table(path) for path in sorted(results.glob("chunks/*/manifest.parquet"))]
    assert sum(manifest.num_rows for manifest in manifests) == summary["samples"]
    assert {status for manifest in manifests for status in manifest.column("status").to_pylist()} == {"ok"}
    assert len(list((results / "dataset" / "speculators" / "hidden_states").iterdir())) == summary["samples"]


def test_self_check_saw_every_slot(finished):
    ready = json.loads((finished.folder / "results" / "server" / "ready.json").read_text())
    assert ready["layers_asked"] == ready["layers_read_back"] == [2, 4, 5]
    check = ready["self_check"]
    assert check["replay"]["agreement"] >= 0.95
    assert [slot["layer"] for slot in check["reference"]["slots"]] == [2, 4, 5, 8]
    assert all(0 < slot["median"] < 0.05 for slot in check["reference"]["slots"])


def test_a_second_run_has_nothing_to_do_and_verify_finds_nothing(finished):
    assert "Nothing to be done" in finished.run("all")[1]
    code, output = finished.run("verify")
    assert code == 0, output
    assert not (finished.folder / "results" / "qa" / "damage").exists()


def test_damage_is_found_and_only_what_is_damaged_is_made_again(finished):
    """A flipped bit in a state, a flipped bit in a token file, and a manifest that is gone, all at once."""
    before = states(finished)
    victim = sorted(before)[2]
    victim.chmod(0o644)
    for path, offset in ((victim, 4000), (finished.folder / "results" / "tokens" / "0001.parquet", 300)):
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
    (finished.folder / "results" / "chunks" / "0001" / "manifest.parquet").unlink()
    code, output = finished.run("verify")
    assert code != 0
    assert victim.name in output and "tokens/0001.parquet" in output and "0001/manifest.parquet" in output
    assert f"snakemake --cores 8 all --configfile {finished.folder}" in output
    code, output = finished.run("all")
    assert code == 0, output
    after = states(finished)
    assert set(after) == set(before)
    assert [path for path in after if after[path] != before[path]] == [victim]
    code, output = finished.run("verify")
    assert code == 0, output
    assert "Nothing to be done" in finished.run("all")[1]


def test_another_cut_of_the_same_corpus_computes_nothing(finished):
    before = states(finished)
    finished.config["extraction"] = {"chunks": 3}
    code, output = finished.run("results/chunks/0002/manifest.parquet")
    assert code == 0, output
    assert states(finished) == before
