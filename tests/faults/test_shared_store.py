"""One store for several configurations: each finds its own states in it, and never another's."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from datasets import load_from_disk
from helpers.fault_run import assert_totals_add_up
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from hidden_states import demo_model
from safetensors import safe_open

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]


def run_all(workflow: Workflow) -> None:
    code, output = workflow.run("all")
    assert code == 0, output


def own_fingerprint(workflow: Workflow) -> str:
    """The one fingerprint of a finished run, which every row of its manifests and every state of its dataset has."""
    tables = [pyarrow.parquet.read_table(path) for path in workflow.folder.glob("results/chunks/*/manifest.parquet")]
    (fingerprint,) = {name for table in tables for name in table.column("fingerprint").to_pylist()}
    dataset = workflow.folder / "results" / "dataset" / "speculators"
    files = sorted((dataset / "hidden_states").iterdir())
    assert len(files) == len(load_from_disk(str(dataset)))
    for file in files:
        with safe_open(file, framework="numpy") as content:
            assert content.metadata()["fingerprint"] == fingerprint
    assert_totals_add_up(workflow)
    return fingerprint


def assert_only_orphans(workflow: Workflow, others: int) -> None:
    """``verify`` and ``prune`` find ``others`` states of other configurations, and nothing wrong with any."""
    code, output = workflow.run("verify")
    assert code == 0, output
    assert f"{others} states belong to no sample of this run" in output
    results = workflow.folder / "results"
    listed = workflow.call("prune")
    assert f"{others} states without a manifest, 0 copies and 0 left-over chunks" in listed
    assert not (results / "quarantine").exists() and not (results / "qa" / "damage").exists()


def test_another_model_in_the_same_directory_has_states_of_its_own(
    run: Workflow, undisturbed: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokenizer, so the same keys; only the weights differ. Switching back computes nothing."""
    run.config["extraction"] = {"chunks": 2}
    run_all(run)
    first, before = own_fingerprint(run), published(run)
    monkeypatch.setattr(demo_model, "SEED", demo_model.SEED + 1)
    demo_model.make_demo_model(tmp_path / "other", demo_model.corpus(repository / demo_model.CONVERSATIONS))
    run.config["model"] = {"path": str(tmp_path / "other")}
    run_all(run)
    assert own_fingerprint(run) != first
    both = published(run)
    assert both.items() > before.items() and len(both) == 2 * len(before)
    assert {Path(name).name for name in both} == {Path(name).name for name in before}
    assert_only_orphans(run, len(before))
    run.config["model"] = {"path": "demo"}
    run_all(run)
    assert own_fingerprint(run) == first
    assert published(run) == both, "switching back computed something"
    assert_only_orphans(run, len(before))
    assert_survived(run, undisturbed, published(run), "a store shared with another model")


def test_two_directories_with_different_layers_share_a_store(
    run: Workflow, another_run: Callable[[str], Workflow], undisturbed: Path, tmp_path: Path
) -> None:
    second = another_run("second")
    (tmp_path / "store").mkdir()
    for workflow in (run, second):
        workflow.config["extraction"] = {"chunks": 2}
        (workflow.folder / "results").mkdir()
        (workflow.folder / "results" / "states").symlink_to(tmp_path / "store")
    second.config["capture"] = {"layers": [3, 6]}
    run_all(run)
    before = published(run)
    run_all(second)
    assert own_fingerprint(run) != own_fingerprint(second)
    for workflow in (run, second):
        assert_only_orphans(workflow, len(before))
    assert_survived(run, undisturbed, before, "a store shared with other layers")
