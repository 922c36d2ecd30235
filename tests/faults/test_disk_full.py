"""No space left where the server writes, or where the states are kept: the run stops, says what it needs, goes on."""

import re
from pathlib import Path

import pytest
from helpers.fault_run import wait_until
from helpers.file_systems import SmallFileSystem, small_file_system
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

ROOM = "16m"
"""More than all states of the run."""


def run_until_full(run: Workflow, disk: SmallFileSystem) -> str:
    """Start ``all``, fill the disk up as soon as a state is published; the output of the run, which fails."""
    process = run.start("all")
    wait_until(lambda: published(run) or process.poll() is not None, 300, "a state is published")
    disk.fill()
    output, _ = process.communicate(timeout=600)
    assert process.returncode != 0, output
    return output


def assert_says_what_it_needs(output: str) -> None:
    assert "Traceback" not in output
    assert re.search(
        r"no space left \(.*\)\. The \d+ samples still to be computed need [1-9][\d,]+ bytes; [\d,]+ bytes are free",
        output,
    )


def test_a_dump_directory_that_fills_up_loses_nothing(run: Workflow, undisturbed: Path) -> None:
    """At the start of the server too: then its self-check says so."""
    run.config["extraction"] = {"chunks": 2, "concurrency": 1}
    with small_file_system(run.folder / "results" / "dump", "128k") as disk:
        code, output = run.run("all")
        assert code != 0 and "Traceback" not in output
        assert re.search(r"self-check: no space left: the state of a prompt needs [\d,]+ bytes", output), output
        disk.resize(ROOM)
        assert_says_what_it_needs(run_until_full(run, disk))
        before = published(run)
        disk.empty()
        code, output = run.run("all")
        assert code == 0, output
        assert_survived(run, undisturbed, before, "dump directory full")


def test_a_store_that_fills_up_loses_nothing(run: Workflow, undisturbed: Path) -> None:
    run.config["extraction"] = {"chunks": 2, "concurrency": 1}
    run.config["packaging"] = {"link": "copy"}  # the dataset is on another file system than the store
    with small_file_system(run.folder / "results" / "states", ROOM) as disk:
        assert_says_what_it_needs(run_until_full(run, disk))
        before = published(run)
        disk.resize("64m")
        code, output = run.run("all")
        assert code == 0, output
        disk.empty()
        assert_survived(run, undisturbed, before, "store full")
