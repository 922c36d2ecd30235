"""Damage, verify, repair by the steps that take its tickets, verify again: only what was damaged is made anew."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.extraction_bench import SPECIFICATION, Bench, prompts
from helpers.fake_server import FakeServer
from helpers.states import FINGERPRINT
from helpers.token_files import write_token_file
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.packaging.speculators import package
from hidden_states.verification.dataset import Verified, verify
from hidden_states.verification.structure import verify_chunk

CHUNKS = ("0000", "0001", "0002")


class Life:
    """A run of three chunks of five samples; ``repair`` runs the steps whose tickets are newer, as Snakemake would."""

    def __init__(self, root: Path, server: FakeServer) -> None:
        self.results, self.server, self.model = Results(root / "results"), server, root / "model"
        self.bench = Bench(self.results, server)
        self.settings = {
            "model": {"path": str(self.model), "revision": None, "trust_remote_code": False},
            "extraction": {"chunks": 3},
            "packaging": {"formats": ["speculators"], "link": "hard", "draft_vocabulary": None},
        }
        write_json(self.model / "config.json", {"num_hidden_layers": 8, "hidden_size": 8, "vocab_size": 200})
        for index, chunk in enumerate(CHUNKS):
            write_token_file(self.results, chunk, prompts(15)[5 * index : 5 * index + 5], 5 * index)
        summary = json.loads(self.results.summary.read_text())
        counts = {"rows_read": 15, "accepted": 15, "rejected": 0, "samples": 15, "reasons": {}, "embedding_rows": 200}
        write_json(self.results.summary, summary | counts)
        write_json(self.results.ready, {"fingerprint": FINGERPRINT, "model_class": "Tiny", "sglang_version": "0.5.23"})
        for chunk in CHUNKS:
            self.bench.extract(chunk)
        self.after_extraction(CHUNKS)

    def after_extraction(self, chunks: tuple[str, ...]) -> None:
        for chunk in chunks:
            verify_chunk(self.results, chunk)
        package(self.settings, self.results, self.model)

    def verify(self) -> Verified:
        return verify(self.settings, self.results, SPECIFICATION)

    def repair(self) -> None:
        stale = []
        for chunk in CHUNKS:
            ticket, manifest = self.results.ticket(chunk), self.results.manifest(chunk)
            if ticket.exists() and (not manifest.exists() or ticket.stat().st_mtime > manifest.stat().st_mtime):
                manifest.unlink(missing_ok=True)
                self.bench.extract(chunk)
                stale.append(chunk)
        self.after_extraction(tuple(stale))

    def state(self, row: int) -> Path:
        return self.bench.store.path(self.key(row))

    def key(self, row: int) -> str:
        return self.bench.rows(CHUNKS[row // 5])[row % 5]["key"]

    def files(self) -> dict[str, tuple[int, int]]:
        """Inode and mtime of the states, manifests and dataset."""
        folders = (self.results.states, self.results.chunks, self.results.dataset("speculators"))
        paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.results.root)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths
        }


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    server = FakeServer(tmp_path / "results")
    yield Life(tmp_path, server)
    server.close()


def flip(path: Path) -> None:
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(1100)
        byte = file.read(1)[0]
        file.seek(1100)
        file.write(bytes([byte ^ 1]))
    path.chmod(0o444)


@pytest.mark.parametrize(
    "fault",
    [flip, lambda path: path.unlink(), lambda path: (path.chmod(0o644), os.truncate(path, 1050))],
    ids=["bit", "missing", "cut"],
)
def test_one_bad_state_is_computed_again_and_nothing_else(life: Life, fault: Callable[[Path], object]):
    row = 7
    key, state = life.key(row), life.state(row).relative_to(life.results.root)
    fault(life.state(row))
    before = life.files()
    assert life.verify().findings
    life.server.requests.clear()
    life.repair()
    assert life.server.keys_requested() == [key]
    after = life.files()
    dataset = "dataset/speculators"
    papers = {f"{dataset}/provenance.json", f"{dataset}/checksums.json", "chunks/0001/journal.jsonl"}
    allowed = {str(state), f"{dataset}/hidden_states/hs_{row}.safetensors", "chunks/0001/manifest.parquet", *papers}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {str(state), f"{dataset}/hidden_states/hs_{row}.safetensors"} <= changed <= allowed
    ticket = life.results.ticket("0001").read_bytes()
    assert not life.verify().findings
    assert life.results.ticket("0001").read_bytes() == ticket
    assert [path.name for path in life.results.ticket("x").parent.iterdir()] == ["0001.json"]


@pytest.mark.parametrize(
    "fault", [lambda path: path.unlink(), lambda path: path.write_bytes(b"?")], ids=["missing", "damaged"]
)
def test_a_bad_manifest_is_written_again_from_the_store(life: Life, fault: Callable[[Path], object]):
    before = life.results.manifest("0001").read_bytes()
    fault(life.results.manifest("0001"))
    assert life.verify().findings
    life.server.requests.clear()
    life.repair()
    assert life.server.requests == []
    assert life.results.manifest("0001").read_bytes() == before
    assert not life.verify().findings


def test_a_run_copied_to_another_place_is_repaired_without_computing(life: Life):
    """A copy has other inodes: every state is read, every manifest written again, nothing is asked of a server."""
    for path in [*life.results.states.rglob("*.safetensors")]:
        content, times = path.read_bytes(), path.stat().st_mtime_ns
        path.unlink()
        path.write_bytes(content)
        os.utime(path, ns=(times, times))
    assert life.verify().findings
    life.server.requests.clear()
    life.repair()
    assert life.server.requests == []
    assert not life.verify().findings


def test_broken_files_of_the_store_are_moved_away(life: Life):
    stranger = life.results.states / FINGERPRINT / "00" / ("00" * 16 + ".safetensors")
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(b"x")
    assert life.verify().findings
    life.repair()
    assert not stranger.exists()
    assert not life.verify().findings


@pytest.mark.parametrize("name", ["0001", "dataset"])
@pytest.mark.parametrize("content", [b"not ours", b"[]", b"\xff"])
def test_a_ticket_that_cannot_be_read_is_listed_and_written_anew(life: Life, name: str, content: bytes):
    """The steps that take it would stop at it for good."""
    ticket = life.results.ticket(name)
    ticket.parent.mkdir()
    ticket.write_bytes(content)
    before = life.files()
    findings = life.verify().findings
    assert findings and any(str(ticket) in line for line in findings.lines())
    life.server.requests.clear()
    life.repair()
    assert life.server.requests == []
    allowed = {"chunks/0001/manifest.parquet", "chunks/0001/journal.jsonl"}
    after = life.files()
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} <= allowed
    assert not life.verify().findings
