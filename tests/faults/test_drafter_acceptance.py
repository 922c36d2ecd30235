"""A drafter trained on the demo's dataset drafts what the target accepts; one trained on swapped slots does so less.

Both losses fall, which is why acceptance on rows that were held out is what counts.
"""

import json
from pathlib import Path

import pytest
from helpers.drafter import Target, acceptance, held_out_rows, settings, train, with_slots
from helpers.fault_run import small_run

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(3600)]

STEPS = 300


@pytest.fixture(scope="module")
def results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole demo, extracted by the real server and packaged."""
    folder = tmp_path_factory.mktemp("demo_run")
    workflow = small_run(repository, folder / "run", folder / "slots", rows=66)
    code, output = workflow.run("all")
    assert code == 0, output
    return workflow.folder / "results"


def test_right_states_train_a_better_drafter_than_swapped_ones(results, tmp_path):
    right = results / "dataset" / "speculators"
    provenance = json.loads((right / "provenance.json").read_text())
    target = Target(results / "demo_model", tuple(provenance["layers"]["L"]))
    rows, figures = held_out_rows(right), {}
    for name, order in (("right", [0, 1, 2, 3]), ("swapped", [3, 2, 1, 0])):
        dataset = with_slots(right, order, tmp_path / name)
        trained = train(settings(provenance["train"], dataset), STEPS)
        figures[name] = acceptance(trained.model, target, rows)
        first, last = trained.losses[0], sum(trained.losses[-10:]) / 10
        print(f"{name}: loss {first:.2f} → {last:.2f}, {trained.samples} samples drawn, {figures[name]}")
        assert trained.error_records == 0 and trained.samples > 0
        assert last < 0.5 * first
    assert figures["right"].first > 1.25 * figures["swapped"].first
    assert figures["right"].length > figures["swapped"].length
