"""What holds after every fault: the dataset of an undisturbed run, and nothing that was published written again."""

from pathlib import Path

from helpers.fault_run import assert_same_dataset, assert_totals_add_up
from helpers.snakemake_run import Workflow


def published(workflow: Workflow) -> dict[str, tuple[int, int]]:
    """Inode and time of every state in the store, by ``<fingerprint>/<ab>/<key>.safetensors``."""
    store = workflow.folder / "results" / "states"
    files = {str(path.relative_to(store)): path.stat() for path in store.glob("*/*/*.safetensors")}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in files.items()}


def assert_survived(workflow: Workflow, undisturbed: Path, before: dict[str, tuple[int, int]], fault: str) -> None:
    """The run is finished, verified and right. ``before``: what was ``published`` when the fault had been injected;
    each of those is still the same file. Prints what was lost and what was recomputed."""
    after = published(workflow)
    lost = [name for name in before if name not in after]
    recomputed = [name for name in before if name in after and after[name] != before[name]]
    comparison = assert_same_dataset(workflow.folder / "results" / "dataset" / "speculators", undisturbed)
    print(
        f"{fault}: {len(before)} states were published before, {len(lost)} of them lost, {len(recomputed)} recomputed; "
        f"{len(after) - len(before)} computed afterwards; rows byte for byte those of an undisturbed run: "
        f"{comparison.identical}, the same up to rounding: {comparison.recomputed}"
    )
    assert not lost and not recomputed
    assert_totals_add_up(workflow)
    code, output = workflow.run("verify")
    assert code == 0, output
