"""``verify`` and ``all`` on the dataset in the format speculators-v1: damage is found, and it alone is made again."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.finished_run import Run, make_sample
from hidden_states.layout import chunk_name
from hidden_states.store.cleanup import evict_chunk, find_unreferenced
from hidden_states.store.store import Store
from hidden_states.store.tickets import DATASET, read_ticket
from hidden_states.verification.dataset import Verified, verify
from hidden_states.verification.structure import verify_chunk

NAME = "speculators-v1"


@pytest.fixture
def done(run: Run) -> Run:
    run.format_name = NAME
    return finish(run)


def finish(run: Run) -> Run:
    for index in range(len(run.chunks)):
        verify_chunk(run.results, chunk_name(index))
    run.package()
    return run


def check(run: Run, **packaging: object) -> Verified:
    specification = SimpleNamespace(fingerprint=run.fingerprint, layers=run.layers, final="pre_norm")
    settings = run.settings | {"packaging": run.settings["packaging"] | packaging}
    return verify(settings, run.results, specification)


def flip(path: Path) -> None:
    """A bit in the middle, with the time it had: only reading finds it."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


def swap(path: Path) -> None:
    """Two rows in each other's place."""
    other, third = path.with_name("data_4.pt"), path.with_name("third")
    path.rename(third)
    other.rename(path)
    third.rename(other)


def test_a_good_dataset_is_in_order(done: Run):
    assert not check(done).findings
    assert not done.results.ticket(DATASET).exists()


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (lambda folder: flip(folder / "data_3.pt"), ["data_3.pt"]),
        (lambda folder: cut(folder / "data_3.pt"), ["data_3.pt"]),
        (lambda folder: (folder / "data_3.pt").unlink(), ["data_3.pt"]),
        (lambda folder: swap(folder / "data_3.pt"), ["data_3.pt", "data_4.pt"]),
        (lambda folder: (folder / "data_6.pt").touch(), ["data_6.pt"]),
        (lambda folder: (folder / "token_freq.pt").touch(), ["token_freq.pt"]),
        (lambda folder: (folder / ".data_1.pt.7.tmp").touch(), [".data_1.pt.7.tmp"]),
        (lambda folder: flip(folder / "sample_lengths.json"), ["sample_lengths.json"]),
        (lambda folder: (folder / "data_config.json").unlink(), ["data_config.json"]),
        (lambda folder: flip(folder / "token_freq.bin"), ["token_freq.bin"]),
        (lambda folder: (folder / "provenance.json").unlink(), ["provenance.json"]),
        (lambda folder: (folder / "checksums.json").write_text("{}"), None),
    ],
)
def test_a_bad_file_is_ticketed_and_packaging_repairs_it_alone(
    done: Run, fault: Callable[[Path], object], names: list[str] | None
):
    before = {path.name: path.read_bytes() for path in done.folder.iterdir()}
    fault(done.folder)
    assert check(done).findings
    if names is not None:
        assert sorted(read_ticket(done.results, DATASET)["files"]) == [f"dataset/{NAME}/{name}" for name in names]
    inodes = {path.name: path.stat().st_ino for path in done.folder.glob("data_*.pt")}
    done.package()
    assert not check(done).findings
    assert {path.name: path.read_bytes() for path in done.folder.iterdir()} == before
    kept = {name for name in inodes.keys() & before.keys() if name not in (names or [])}
    assert all((done.folder / name).stat().st_ino == inodes[name] for name in kept)


def test_other_files_in_the_folder_are_left_alone(done: Run):
    (done.folder / "notes.txt").touch()
    assert not check(done).findings
    done.package()
    assert (done.folder / "notes.txt").exists()


def test_evicted_states_that_come_back_different_make_their_rows_again_and_prune_leaves_rows_alone(done: Run):
    before = {path.name: path.read_bytes() for path in done.folder.glob("data_*.pt")}
    evict_chunk(done.results, "0001", Store(done.results, done.fingerprint))
    assert check(done).findings
    for sample in done.chunks[1]:
        sample.states = sample.states + 1
    done.write()
    finish(done)
    assert not check(done).findings
    after = {path.name: path.read_bytes() for path in done.folder.glob("data_*.pt")}
    assert {name for name in before if before[name] != after[name]} == {f"data_{row}.pt" for row in (3, 4, 5)}
    done.chunks[1].pop()
    done.write()
    find_unreferenced(done.results, done.fingerprint).remove()
    assert len(list(done.folder.glob("data_*.pt"))) == 6
    finish(done)
    assert not check(done).findings
    assert len(list(done.folder.glob("data_*.pt"))) == 5


def test_both_formats_are_checked_and_one_that_is_not_asked_for_is_a_note(done: Run):
    assert check(done, formats=["speculators", NAME]).findings.counts == {"datasets not packaged yet": 1}
    done.format_name = "speculators"
    done.package()
    assert not check(done, formats=["speculators", NAME]).findings
    flip(done.results.dataset(NAME) / "data_2.pt")
    assert check(done, formats=["speculators", NAME]).findings.counts == {"damaged or missing dataset files": 1}
    verified = check(done)
    assert not verified.findings
    assert any(f"dataset/{NAME} is not in packaging.formats" in note for note in verified.findings.notes)


def test_an_unfinished_chunk_leaves_the_rows_unjudged(done: Run):
    done.results.manifest("0001").unlink()
    assert "damaged or missing dataset files" not in check(done).findings.counts


def test_a_mask_that_changed_makes_the_dataset_stale(done: Run):
    done.chunks[0][0].mask = [1, 1, 1]
    done.write()
    for index in range(3):
        verify_chunk(done.results, chunk_name(index))
    check(done)
    assert f"dataset/{NAME}/data_0.pt" in read_ticket(done.results, DATASET)["files"]
    done.package()
    assert not check(done).findings


def test_many_samples_of_one_length_and_long_ones(tmp_path: Path):
    """More rows than are read ahead, one of them of several blocks."""
    samples = [make_sample(seed, 5) for seed in range(120)] + [make_sample(500, 40_000)]
    run = finish(Run(tmp_path, [samples], format_name=NAME).write())
    assert not check(run).findings
    flip(run.folder / "data_120.pt")
    assert check(run).findings.counts == {"damaged or missing dataset files": 1}
