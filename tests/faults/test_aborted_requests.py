"""Requests that end before their time, or that take the name of another: nothing wrong is published, and the run is
right."""

from pathlib import Path

import pytest
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from helpers.uninvited import Guests, guests, prompt
from hidden_states.server.record import Record

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

LONG = [5 + number % 200 for number in range(3000)]


class Meddler:
    """Sees by the files in the dump directory which requests of the run are under way, and meddles with each once."""

    def __init__(self) -> None:
        self.aborted: set[str] = set()
        self.doubled: set[str] = set()

    def visit(self, sent: Guests, record: Record) -> None:
        """Abort one sample's request in mid-prefill, or send another prompt under its name; and go away from one."""
        for path in sorted(Path(record.dump).glob(f"{record.rid_prefix}0*.tmp")):
            rid = path.name.split(".")[0]
            key = rid.split("-")[3]
            if key in self.aborted | self.doubled:
                continue
            if len(self.aborted) <= len(self.doubled):
                self.aborted.add(key)
                sent.send(record, "abort", "/abort_request", {"rid": rid})
            else:
                self.doubled.add(key)
                sent.send(record, "double", "/generate", prompt(rid, [9, 8, 7, 6]))
                sent.send(record, "double again", "/generate", prompt(rid, [9, 8, 7, 6]))
            sent.go_away(record, prompt(f"{record.rid_prefix}gone-{len(self.aborted)}-{len(self.doubled)}", LONG), 0.2)
            return


def test_aborted_doubled_and_abandoned_requests_leave_the_run_right(
    run: Workflow, undisturbed: Path, tmp_path: Path
) -> None:
    meddler = Meddler()
    process = run.start("all")
    with guests(tmp_path / "slots", meddler.visit, pause=0.002) as sent:
        output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    said = "".join(path.read_text() for path in sorted(run.folder.glob("logs/extract/*.log")))
    retried = said.count("aborted: ")
    print(dict(sent.answers), f"aborted: {len(meddler.aborted)}, doubled: {len(meddler.doubled)}, retried: {retried}")
    assert sent.total("abort", 200) and sent.total("double") and sent.total("gone away", 0)
    assert retried, "no abort met a request in flight"
    dump = run.folder / "results" / "dump"
    left = sorted(path.name for path in dump.rglob("*") if path.is_file())
    assert left == ["capture.json", "capture.rendezvous", "capture_stats.json"]
    assert_survived(run, undisturbed, published(run), "requests aborted, doubled and abandoned")
