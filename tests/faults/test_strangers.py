"""Requests that are not the run's, sent to its server from the first moment to the last: nothing of them appears."""

import os
import stat
from pathlib import Path

import pytest
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from helpers.uninvited import WORDS, Guests, guests, prompt
from hidden_states.server.record import Record
from hidden_states.store.state_file import sample_key

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

MARK = 777
"""The first id of every stranger's prompt; no prompt of the run begins with it."""
IDS = [MARK, *range(10, 90)]
NAME = "uninvited"
TAILS = (NAME, "0001-" + "0" * 32 + "-00000000-1", f"check-{NAME}", "..", "x" * 250)
"""What strangers who know the run's prefix put behind it."""


def visit(sent: Guests, record: Record) -> None:
    """One of each kind."""
    sent.send(record, "health", "/health")
    sent.send(record, "health_generate", "/health_generate")
    sent.send(record, "warm-up", "/generate", WORDS)
    sent.send(record, "untagged", "/generate", prompt(None, IDS))
    key = sample_key(b"".join(number.to_bytes(8, "little") for number in IDS))
    sent.send(record, "an old run's", "/generate", prompt(f"hs-0123456789ab-0000-{key}-00000000-1", IDS))
    sent.send(record, "HEALTH_CHECK", "/generate", prompt(f"HEALTH_CHECK_{record.rid_prefix}0", IDS))
    sent.send(record, "prefix inside", "/generate", prompt(f"x{record.rid_prefix}0001", IDS))
    for tail in TAILS:
        sent.send(record, "prefix", "/generate", prompt(record.rid_prefix + tail, IDS))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def test_nothing_of_strangers_appears_and_no_key_stays_behind(run: Workflow, undisturbed: Path, tmp_path: Path) -> None:
    """The run has umask 000 besides, so that what is private is so by itself."""
    slots = tmp_path / "slots"
    run.config["extraction"] |= {"concurrency": 2}
    slots.chmod(0o700)
    before = os.umask(0)
    try:
        process = run.start("all")
    finally:
        os.umask(before)
    with guests(slots, visit) as sent:
        output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    print(dict(sent.answers))
    for kind in ("health", "health_generate", "warm-up", "untagged", "an old run's", "HEALTH_CHECK", "prefix inside"):
        assert sent.total(kind, 200), kind
    assert sent.total("prefix", 200)
    results = run.folder / "results"
    assert sorted(path.name for path in files(results / "dump")) == [
        "capture.json",
        "capture.rendezvous",
        "capture_stats.json",
    ]
    strange = b"".join(number.to_bytes(8, "little") for number in IDS)
    for path in files(run.folder):
        content = path.read_bytes()
        assert strange not in content, path
        assert NAME.encode() not in content or path.suffix == ".log", path
        assert not any(key.encode() in content for key in sent.keys), path
    # The other files of the folder are the test's and Snakemake's own.
    ours = [results, *results.rglob("*"), run.folder / "logs", *(run.folder / "logs").rglob("*")]
    assert not [path for path in ours if path.stat().st_mode & stat.S_IWOTH]
    assert sent.keys
    holders = [path for path in files(slots) if any(key.encode() in path.read_bytes() for key in sent.keys)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in holders] == [0o600] * len(holders)
    states = list(results.glob("states/*/*/*.safetensors"))
    assert states and {stat.S_IMODE(path.stat().st_mode) for path in states} == {0o444}
    assert_survived(run, undisturbed, published(run), "strangers throughout the run")
