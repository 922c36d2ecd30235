"""Runs of the whole workflow on the real server that faults are injected into, and what their datasets must equal."""

import json
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from datasets import load_from_disk
from helpers.snakemake_run import Workflow
from safetensors.torch import load_file

LARGEST_MEDIAN = 0.05
"""Of the relative error per token between two computations of a state: a prompt computed in other company is rounded
otherwise, and a mixture of experts sends some of its tokens elsewhere. A wrong row, layer or sample is above 0.4."""


def small_run(repository: Path, folder: Path, slots: Path, rows: int = 24, chunks: int = 4) -> Workflow:
    """The demo model and ``rows`` conversations of the demo, one more to be rejected, in ``chunks`` chunks.

    ``slots``: where the server's lease lives; runs that share it share the server's devices.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = (repository / "resources" / "conversations" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    corpus = folder / "corpus.jsonl"
    corpus.write_text("\n".join([*lines[:rows], '{"messages": []}']), encoding="utf-8")
    slots.mkdir(parents=True, exist_ok=True)
    workflow = Workflow(repository, folder, None)
    workflow.environment["HIDDEN_STATES_SLOT_DIR"] = str(slots)
    workflow.config |= {
        "conversations": {"files": [str(corpus)]},
        "extraction": {"chunks": chunks},
        "server": {"device": "cpu", "arguments": {"chunked_prefill_size": 128}},
    }
    return workflow


@dataclass(frozen=True)
class Comparison:
    """How many rows' states are byte for byte those of the other dataset, and how many were computed anew."""

    identical: int
    recomputed: int


def assert_same_dataset(found: Path, right: Path, without: Collection[int] = ()) -> Comparison:
    """Both: a ``dataset/speculators`` folder. The same rows in the same order, the same token ids and loss masks, and
    for each row a state that is the same to the byte, or the same up to the rounding of another computation.

    ``without``: rows of ``right`` that are not to be in ``found``; those behind them move up.
    """
    rows, expected = load_from_disk(str(found)), load_from_disk(str(right))
    kept = [index for index in range(len(expected)) if index not in without]
    expected = expected.select(kept)
    columns = ["input_ids", "loss_mask", "seq_len"]
    assert rows.select_columns(columns).to_list() == expected.select_columns(columns).to_list()
    names = {f"hs_{index}.safetensors": f"hs_{row}.safetensors" for index, row in enumerate(kept)}
    assert {path.name for path in (found / "hidden_states").iterdir()} == set(names)
    identical = 0
    for name, name_there in names.items():
        ours, theirs = found / "hidden_states" / name, right / "hidden_states" / name_there
        if ours.read_bytes() == theirs.read_bytes():
            identical += 1
            continue
        a, b = load_file(ours), load_file(theirs)
        assert torch.equal(a["token_ids"], b["token_ids"])
        x, y = a["hidden_states"].float(), b["hidden_states"].float()
        assert x.shape == y.shape
        errors = (x - y).norm(dim=-1) / y.norm(dim=-1)
        assert errors.median(0).values.max() < LARGEST_MEDIAN, name
    return Comparison(identical, len(names) - identical)


def states(workflow: Workflow) -> dict[str, tuple[int, int]]:
    """Inode and time of every published state, by name."""
    files = workflow.folder.glob("results/states/*/*/*.safetensors")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def assert_totals_add_up(workflow: Workflow) -> None:
    """Accepted + rejected = read; extracted + failed = samples."""
    import pyarrow.parquet

    results = workflow.folder / "results"
    summary = json.loads((results / "tokens" / "summary.json").read_text())
    assert summary["accepted"] + summary["rejected"] == summary["rows_read"]
    tables = [pyarrow.parquet.read_table(path) for path in sorted(results.glob("chunks/*/manifest.parquet"))]
    statuses = [status for table in tables for status in table.column("status").to_pylist()]
    assert len(statuses) == summary["samples"]
    assert set(statuses) <= {"ok", "failed"}


def server_processes(slots: Path) -> list[psutil.Process]:
    """Every process of servers, keepers and steps whose environment names ``slots``, and all that they started.

    SGLang's schedulers overwrite what the system shows of their environment when they give themselves a title.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _environment(process).get("HIDDEN_STATES_SLOT_DIR") == str(slots):
            found[process.pid] = process
            found.update((child.pid, child) for child in _children(process))
    return list(found.values())


def schedulers(slots: Path) -> list[psutil.Process]:
    """The SGLang schedulers among them: the processes that compute."""
    return [process for process in server_processes(slots) if "sglang::scheduler" in " ".join(_command(process))]


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def kill_everything(slots: Path) -> None:
    """KILL whatever is left of a run; for the end of a test."""
    for process in server_processes(slots):
        if process.pid != os.getpid():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return []
