"""Damage of every kind in every place: `verify` lists each, a plain `all` repairs exactly that, and then nothing is
left to do."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from helpers.fault_run import kill_everything, small_run
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(3600)]

Damage = Callable[[Path], object]


def flip(position: float) -> Damage:
    """Flip one bit, at this share of the file's length."""

    def damage(path: Path) -> None:
        path.chmod(0o644)
        content = bytearray(path.read_bytes())
        content[int(position * (len(content) - 1))] ^= 4
        path.write_bytes(content)

    return damage


def cut(share: float) -> Damage:
    """Keep only this share of the file."""

    def damage(path: Path) -> None:
        path.chmod(0o644)
        os.truncate(path, int(share * path.stat().st_size))

    return damage


def delete(path: Path) -> None:
    path.unlink()


def foreign(path: Path) -> None:
    """A file of nobody's in a place that is free, or over one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(b"not ours")


def another(path: Path) -> None:
    """The intact file of another sample under this name."""
    neighbour = next(other for other in sorted(path.parents[1].glob("*/*.safetensors")) if other.name != path.name)
    path.unlink()
    shutil.copyfile(neighbour, path)


@dataclass
class Rot:
    """A finished run and what has been done to it. ``damaged``: files that have to be listed and made whole."""

    run: Workflow
    damaged: list[Path] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.run.folder / "results"

    @property
    def dataset(self) -> Path:
        return self.results / "dataset" / "speculators"

    def states_of(self, chunk: str) -> list[Path]:
        table = pyarrow.parquet.read_table(self.results / "chunks" / chunk / "manifest.parquet", columns=["file"])
        return [self.results / name for name in table.column("file").to_pylist()]

    def inflict(self, damage: Damage, *paths: Path) -> None:
        for path in paths:
            damage(path)
            self.damaged.append(path)

    def assert_listed(self) -> None:
        """`verify` fails and names each damaged file."""
        code, output = self.run.run("verify")
        assert code != 0 and "Traceback" not in output
        assert [path for path in self.damaged if str(path.relative_to(self.results)) not in output] == [], output

    def assert_repaired(self) -> None:
        """`all` goes through; afterwards `verify` finds nothing, and there is nothing to do."""
        code, output = self.run.run("all")
        assert code == 0, output
        code, output = self.run.run("verify")
        assert code == 0, output
        assert "Nothing to be done" in self.run.run("all")[1]
        self.damaged = []


@pytest.fixture(scope="module")
def finished(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workflow]:
    folder = tmp_path_factory.mktemp("rot")
    workflow = small_run(repository, folder / "run", folder / "slots")
    code, output = workflow.run("all")
    assert code == 0, output
    yield workflow
    kill_everything(folder / "slots")


@pytest.fixture
def rot(finished: Workflow) -> Rot:
    return Rot(finished)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def links(dataset: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (dataset / "hidden_states").iterdir()}


STATE_DAMAGES: list[Damage] = [another, flip(0.0001), flip(0.4), flip(0.9999), cut(0.6), cut(0), delete, foreign]
"""Bits in the header, the states and the token ids, and what a disk, a user or a program may do."""


def test_rot_in_store_manifests_and_qa(rot: Rot, undisturbed: Path) -> None:
    """Only the damaged states are computed anew; a manifest or a record of the gate costs nothing but itself."""
    before, links_before = published(rot.run), links(rot.dataset)
    tokens = contents(rot.results / "tokens")
    victims = [*rot.states_of("0000")[:4], *rot.states_of("0003")[:4]]
    for path, damage in zip(victims, STATE_DAMAGES, strict=True):
        rot.inflict(damage, path)
    fingerprint = victims[0].parents[1]
    strangers = [
        fingerprint / "00" / ("00" * 16 + ".safetensors"),
        fingerprint / "00" / "note.txt",
        fingerprint / "left.tmp",
        rot.results / "states" / "stray.safetensors",
    ]
    rot.inflict(foreign, *strangers)
    rot.inflict(flip(0.5), rot.results / "chunks" / "0001" / "manifest.parquet")
    rot.inflict(delete, rot.results / "chunks" / "0002" / "manifest.parquet")
    rot.inflict(flip(0.5), rot.results / "qa" / "0000.json")
    rot.inflict(delete, rot.results / "qa" / "0003.json")
    dump = next((rot.results / "dump").iterdir())
    for name in ("hs-0123456789ab-0000-x-1.safetensors", "hs-0123456789ab-0000-x-1.0.tmp", "capture.error.json", "x"):
        foreign(dump / name)
    rot.assert_listed()
    rot.assert_repaired()
    names = {str(path.relative_to(rot.results / "states")) for path in victims}
    after = published(rot.run)
    assert {name for name in after if after[name] != before.get(name)} == names and set(after) == set(before)
    relinked = {name for name, inode in links(rot.dataset).items() if inode != links_before[name]}
    assert len(relinked) == len(victims)
    assert contents(rot.results / "tokens") == tokens
    assert not any(path.exists() for path in strangers)
    moved = [json.loads(line)["file"] for line in (rot.results / "quarantine" / "log.jsonl").read_text().splitlines()]
    assert {str(path.relative_to(rot.results)) for path in strangers} <= set(moved)
    left = {path.name for path in dump.iterdir()}
    assert left == {"capture.json", "capture.rendezvous", "capture_stats.json"}
    intact = {name: what for name, what in before.items() if name not in names}
    assert_survived(rot.run, undisturbed, intact, f"{len(victims)} states damaged, with manifests and records")


def test_rot_in_dataset_and_tickets_computes_nothing(rot: Rot, undisturbed: Path) -> None:
    before, right = published(rot.run), contents(rot.dataset)
    rot.inflict(cut(0.5), rot.dataset / "state.json")
    rot.inflict(delete, rot.dataset / "dataset_info.json")
    rot.inflict(flip(0.5), rot.dataset / "data-00001-of-00004.arrow")
    rot.inflict(flip(0.3), rot.dataset / "README.md", rot.dataset / "provenance.json", rot.dataset / "token_freq.pt")
    rot.inflict(delete, rot.dataset / "data-00002-of-00004.arrow", rot.dataset / "hidden_states" / "hs_3.safetensors")
    rot.inflict(foreign, rot.dataset / "hidden_states" / "hs_4.safetensors")
    rot.inflict(another_row, rot.dataset / "hidden_states" / "hs_5.safetensors")
    rot.inflict(foreign, rot.dataset / "hidden_states" / "hs_99.safetensors", rot.dataset / "data-00009-of-00010.arrow")
    damage = rot.results / "qa" / "damage"
    rot.inflict(foreign, damage / "0003.json", damage / "dataset.json")
    rot.assert_listed()
    rot.assert_repaired()
    assert contents(rot.dataset) == right
    assert_survived(rot.run, undisturbed, before, "dataset and tickets damaged")


def another_row(path: Path) -> None:
    """The link of the row before in the place of this one."""
    path.unlink()
    number = int(path.name.removeprefix("hs_").removesuffix(".safetensors"))
    os.link(path.with_name(f"hs_{number - 3}.safetensors"), path)


def unmeasured(provenance: bytes) -> dict[str, Any]:
    """Without the figures of the self-check, which rounding moves from one start to the next."""
    content = json.loads(provenance)
    del content["server"]["self_check"]
    return content


def test_rot_in_tokens_and_in_the_datasets_own_records_computes_nothing(rot: Rot, undisturbed: Path) -> None:
    before, right, tokens = published(rot.run), contents(rot.dataset), contents(rot.results / "tokens")
    rot.inflict(flip(0.5), rot.results / "tokens" / "0000.parquet")
    rot.inflict(cut(0.5), rot.results / "tokens" / "0001.parquet")
    rot.inflict(delete, rot.results / "tokens" / "0002.parquet")
    rot.inflict(flip(0.5), rot.results / "tokens" / "copy" / "0003.parquet")
    rot.inflict(cut(0.5), rot.dataset / "checksums.json")
    rot.inflict(delete, rot.dataset / "provenance.json")
    rot.assert_listed()
    rot.assert_repaired()
    # The deleted one let tokenize run again, which then sees what the store has, and the server be checked again.
    now = contents(rot.dataset)
    assert unmeasured(now.pop("provenance.json")) == unmeasured(right.pop("provenance.json"))
    for name in ("README.md", "checksums.json"):  # they repeat what was measured
        del now[name], right[name]
    assert now == right
    assert contents(rot.results / "tokens") | {"summary.json": b""} == tokens | {"summary.json": b""}
    assert_survived(rot.run, undisturbed, before, "token files and the dataset's own records damaged")


def test_records_that_only_their_step_can_make_are_named_and_made_again_once_deleted(
    rot: Rot, undisturbed: Path
) -> None:
    """Nothing else says what they said: `verify` asks the user to delete them, as their step then runs again."""
    before = published(rot.run)
    records = [rot.results / "tokens" / "rejected.parquet", rot.results / "server" / "ready.json"]
    for path in records:
        rot.inflict(flip(0.02), path)
    rot.assert_listed()
    summary = rot.results / "tokens" / "summary.json"
    rot.inflict(cut(0.5), summary)
    rot.damaged = [summary, records[1]]  # what the summary said of the rejected rows is gone with it
    rot.assert_listed()
    for path in (*records, summary):
        path.unlink()
    rot.assert_repaired()
    assert_survived(rot.run, undisturbed, before, "records of tokenize and of the server damaged")
