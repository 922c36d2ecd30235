"""Files of the dump directory that rot between the server and the client: none of them is ever published."""

import re
from pathlib import Path

import pytest
from helpers.impatient import make_impatient
from helpers.planted_faults import write_plugin
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(1800)]

ROT = """
import os
import re
import threading

LOCK = threading.Lock()
DONE = []
WHOLE = []  # the content of a file of the self-check

def register():
    if os.environ.get("SGLANG_HS_DUMP_DIR"):
        from hidden_states.capture import state_writer
        state_writer.os = Rotten()

class Rotten:
    def __getattr__(self, name):
        return getattr(os, name)

    def rename(self, source, target):
        with LOCK:
            # A sample's first attempt; not the prompts of the self-check.
            first = re.search(r"-[0-9]{4}-[0-9a-f]{32}-[0-9a-f]{8}-1[.]safetensors$", str(target))
            if first and len(DONE) < EACH * len(KINDS):
                kind = KINDS[len(DONE) % len(KINDS)]
                DONE.append(kind)
                with open(LOG, "a") as file:
                    file.write(f"{kind} {target}\\n")
                damage(kind, source)
            elif not first and not WHOLE:
                with open(source, "rb") as file:
                    WHOLE.append(file.read())
        if os.path.exists(source):
            os.rename(source, target)

def damage(kind, path):
    size = os.path.getsize(path)
    if kind == "gone":
        os.unlink(path)
    elif kind == "half":
        os.truncate(path, size // 2)
    elif kind == "another":
        with open(path, "wb") as file:
            file.write(WHOLE[0])
    else:
        with open(path, "r+b") as file:
            file.seek(size // 2 if kind == "bit" else 0)
            old = file.read(1 if kind == "bit" else size)
            file.seek(-len(old), 1)
            file.write(bytes(byte ^ 1 for byte in old))
"""
"""A plug-in of the server: state files are damaged after their fsync, before they have their name."""
KINDS = {
    "bit": "checksum_mismatch",
    "half": "truncated",
    "noise": "header_damaged",
    "gone": "no_capture",
    "another": "foreign",
}
"""What is done to a file, and the reason for which it is refused."""
EACH = 2
SILENCE = 60.0
"""Seconds until a file that never comes is given up; the product's are 200."""


def test_a_file_that_is_damaged_before_it_is_published_is_asked_for_again(
    run: Workflow, undisturbed: Path, tmp_path: Path
) -> None:
    """A bit, a half, every byte, no file at all, and the whole file of another request in its place."""
    log = tmp_path / "rot.log"
    plugin = write_plugin(tmp_path / "plugin", "rot", f"KINDS, EACH, LOG = {[*KINDS]}, {EACH}, {str(log)!r}\n{ROT}")
    make_impatient(run, tmp_path / "tools", SILENCE)
    run.config["extraction"] = {"chunks": 2}
    code, output = run.run("all", PYTHONPATH=str(plugin))
    assert code == 0, output
    damaged = [line.split() for line in log.read_text().splitlines()]
    assert [kind for kind, _ in damaged] == [*KINDS] * EACH
    kind_of = {re.search("[0-9a-f]{32}", Path(target).name)[0]: kind for kind, target in damaged}
    said = "".join(path.read_text() for path in sorted(run.folder.glob("logs/extract/*.log")))
    reasons = dict(re.findall(r"\(key ([0-9a-f]{32})\): (\w+)", said))
    print(f"{len(damaged)} files of the dump directory damaged:", {kind: reasons.get(k) for k, kind in kind_of.items()})
    assert {key: KINDS[kind] for key, kind in kind_of.items()} == {key: reasons.get(key) for key in kind_of}
    assert not list(run.folder.glob("results/dump/*/hs-*")), "nothing is left for good"
    assert_survived(run, undisturbed, published(run), "files damaged in the dump directory")
