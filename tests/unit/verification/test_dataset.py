"""``verify`` finds every kind of damage, and its tickets name exactly what has to be made again."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.finished_run import Run, make_sample
from helpers.manifests import edit_manifest
from hidden_states.errors import UserError
from hidden_states.layout import chunk_name
from hidden_states.store.state_file import StateHeader
from hidden_states.verification.dataset import Verified, verify
from hidden_states.verification.structure import verify_chunk


def finish(run: Run) -> Run:
    for index in range(len(run.chunks)):
        verify_chunk(run.results, chunk_name(index))
    run.package()
    return run


@pytest.fixture
def done(run: Run) -> Run:
    return finish(run)


def check(run: Run) -> Verified:
    specification = SimpleNamespace(fingerprint=run.fingerprint, layers=run.layers, final="pre_norm")
    return verify(run.settings, run.results, specification)


def tickets(run: Run) -> dict[str, dict]:
    """Content of every ticket, without its time."""
    folder = run.results.ticket("x").parent
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: {key: value for key, value in content.items() if key != "time"} for name, content in found.items()}


def ticketed(run: Run) -> dict[str, dict[str, list[str]]]:
    """The names in every ticket, without the reasons."""
    return {
        name: {section: sorted(entries) for section, entries in content.items()}
        for name, content in tickets(run).items()
    }


def flip(path: Path, offset: int) -> None:
    mode = path.stat().st_mode
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(mode)


def cut(path: Path, size: int) -> None:
    path.chmod(0o644)
    os.truncate(path, size)


def everything(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_good_run_is_in_order_and_nothing_is_written(done: Run):
    before = everything(done.root)
    verified = check(done)
    assert not verified.findings
    assert verified.findings.notes == []
    assert (verified.states, verified.failed) == (6, {"0000": 1})
    assert everything(done.root) == before


@pytest.mark.parametrize("settings_known", [True, False])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: flip(path, 1100), "checksum_mismatch"),
        (lambda path: flip(path, 10), "header_damaged"),
        (lambda path: flip(path, path.stat().st_size - 1), "checksum_mismatch"),
        (lambda path: cut(path, 1200), "truncated"),
        (lambda path: cut(path, 100_000), "too_long"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/null")), "foreign"),
        (lambda path: (path.unlink(), path.write_bytes(b"x" * 2000)), "header_damaged"),
    ],
    ids=["missing", "state bit", "header bit", "token id bit", "cut", "longer", "link", "no state"],
)
def test_a_broken_state_is_ticketed_by_its_key_alone(done: Run, fault, reason, settings_known):
    fault(done.state_path(done.key(4)))
    verified = check(done) if settings_known else verify(done.settings, done.results, None)
    assert sum(verified.findings.counts.values()) == 1
    found = tickets(done)
    assert list(found) == ["0001"]
    assert list(found["0001"]["keys"]) == [done.key(4)]
    assert found["0001"]["keys"][done.key(4)].startswith(reason)


def test_a_state_of_another_sample_is_found_although_it_is_good_in_itself(done: Run):
    path = done.state_path(done.key(4))
    path.unlink()
    os.link(done.state_path(done.key(3)), path)
    check(done)
    assert ticketed(done) == {"0001": {"keys": [done.key(4)]}}


def test_states_with_another_checksum_than_the_manifests_are_found(done: Run):
    sample = dataclasses.replace(done.chunks[1][0], states=make_sample(99, 7).states)
    path = done.state_path(done.key(3))
    header, data = done.state_bytes(done.key(3), sample)
    path.unlink()
    path.write_bytes(header.to_bytes() + data)
    check(done)
    assert tickets(done)["0001"]["keys"][done.key(3)].startswith("checksum_mismatch")


def test_states_of_other_layers_are_found(done: Run):
    path = done.state_path(done.key(3))
    raw = path.read_bytes()
    header = dataclasses.replace(StateHeader.from_bytes(raw), layers=(1, 4, 5))
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.write(header.to_bytes())
    check(done)
    assert ticketed(done) == {"0001": {"keys": [done.key(3)]}}


def test_a_state_that_several_chunks_share_is_ticketed_in_each(run: Run):
    shared = run.chunks[0][1]
    both = finish(Run(run.root / "both", [[make_sample(9, 5), shared], [shared], [make_sample(8, 4)]]).write())
    flip(both.state_path(both.key(1)), 1100)
    verified = check(both)
    assert ticketed(both) == {"0000": {"keys": [both.key(1)]}, "0001": {"keys": [both.key(1)]}}
    assert verified.findings.counts == {"damaged or missing states": 1}


@pytest.mark.parametrize(
    "fault",
    [
        lambda path: path.unlink(),
        lambda path: flip(path, path.stat().st_size - 20),
        *(
            lambda path, share=share: flip(path, int(share * path.stat().st_size))
            for share in (0.1, 0.3, 0.5, 0.7, 0.9)
        ),
        lambda path: path.write_bytes(b"not parquet"),
    ],
    ids=["missing", "bit", "10 %", "30 %", "50 %", "70 %", "90 %", "no parquet"],
)
def test_a_bad_manifest_is_ticketed_without_keys_when_its_states_are_good(done: Run, fault):
    fault(done.results.manifest("0001"))
    check(done)
    assert ticketed(done) == {"0001": {"keys": []}}


def test_without_a_manifest_its_broken_states_are_still_found(done: Run):
    done.results.manifest("0001").unlink()
    flip(done.state_path(done.key(4)), 1100)
    check(done)
    assert ticketed(done) == {"0001": {"keys": [done.key(4)]}}


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: rows.pop(),
        lambda rows: rows.reverse(),
        lambda rows: rows.append(dict(rows[0])),
        lambda rows: rows[0].update(fingerprint="e" * 32),
    ],
    ids=["row missing", "order", "double", "fingerprint"],
)
def test_a_manifest_that_does_not_fit_its_tokens_is_ticketed(done: Run, edit):
    edit_manifest(done.results, "0001", edit)
    assert check(done).findings.counts["damaged manifests"] == 1
    assert ticketed(done) == {"0001": {"keys": []}}


def test_damage_before_the_fault_of_a_manifest_is_not_forgotten(done: Run):
    edit_manifest(done.results, "0001", lambda rows: rows[2].update(status="fine"))
    flip(done.state_path(done.key(3)), 1100)
    flip(done.state_path(done.key(5)), 1100)
    check(done)
    assert ticketed(done) == {"0001": {"keys": sorted([done.key(3), done.key(5)])}}


@pytest.mark.parametrize("fault", [lambda path: path.unlink(), lambda path: flip(path, 700)], ids=["missing", "bit"])
def test_a_bad_token_file_is_ticketed_by_its_chunk(done: Run, fault: Callable):
    fault(done.results.tokens("0001"))
    check(done)
    assert ticketed(done) == {"0001": {"keys": []}}


@pytest.mark.parametrize("fault", [lambda path: path.unlink(), lambda path: flip(path, 700)], ids=["missing", "bit"])
def test_a_bad_copy_of_a_token_file_is_ticketed_by_its_chunk(done: Run, fault: Callable):
    fault(done.results.token_copy("0001"))
    assert "tokens/copy/0001.parquet: " in "\n".join(check(done).findings.lines())
    assert ticketed(done) == {"0001": {"keys": []}}


def test_a_damaged_summary_is_an_error_that_only_tokenize_can_mend(done: Run):
    done.results.summary.write_text("{")
    assert "delete it: then `all` makes it again" in "\n".join(check(done).findings.lines())
    done.results.summary.unlink()
    assert f"{done.results.summary}: missing: `all` makes it again" in "\n".join(check(done).findings.lines())
    assert ticketed(done) == {}


@pytest.mark.parametrize(
    "fault", [lambda path: path.unlink(), lambda path: path.write_text("{}")], ids=["missing", "other"]
)
def test_a_bad_qa_record_is_ticketed_by_its_chunk(done: Run, fault):
    fault(done.results.chunk_qa("0001"))
    check(done)
    assert ticketed(done) == {"0001": {"keys": []}}


def test_chunks_of_another_configuration_are_found(done: Run):
    done.fingerprint = "a" * 32
    verified = check(done)
    assert verified.findings.counts["chunks of another configuration"] == 2
    assert sorted(ticketed(done)) == ["0000", "0001"]


def relink(folder: Path, row: int, other: int) -> None:
    (folder / f"hidden_states/hs_{row}.safetensors").unlink()
    os.link(folder / f"hidden_states/hs_{other}.safetensors", folder / f"hidden_states/hs_{row}.safetensors")


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (lambda folder: (folder / "hidden_states/hs_2.safetensors").unlink(), ["hidden_states/hs_2.safetensors"]),
        (lambda folder: relink(folder, 2, 3), ["hidden_states/hs_2.safetensors"]),
        (
            lambda folder: os.link(
                folder / "hidden_states/hs_0.safetensors", folder / "hidden_states/hs_6.safetensors"
            ),
            ["hidden_states/hs_6.safetensors"],
        ),
        (lambda folder: flip(folder / "data-00001-of-00003.arrow", 900), ["data-00001-of-00003.arrow"]),
        (lambda folder: (folder / "data-00001-of-00003.arrow").unlink(), ["data-00001-of-00003.arrow"]),
        (lambda folder: (folder / "data-00003-of-00004.arrow").touch(), ["data-00003-of-00004.arrow"]),
        (lambda folder: flip(folder / "token_freq.pt", 100), ["token_freq.pt"]),
        (lambda folder: (folder / "state.json").unlink(), ["state.json"]),
        (lambda folder: flip(folder / "provenance.json", 100), ["provenance.json"]),
        (lambda folder: (folder / "provenance.json").unlink(), ["provenance.json"]),
        (lambda folder: (folder / "README.md").write_text("mine"), ["README.md"]),
        (lambda folder: (folder / "checksums.json").write_text("{"), ["checksums.json"]),
    ],
)
def test_a_bad_dataset_file_is_ticketed_and_packaging_repairs_it(done: Run, fault, names):
    fault(done.folder)
    check(done)
    assert ticketed(done) == {"dataset": {"files": [f"dataset/speculators/{name}" for name in names], "store": []}}
    ticket = done.results.ticket("dataset")
    before = ticket.read_bytes()
    done.package()
    assert not check(done).findings
    assert ticket.read_bytes() == before


@pytest.mark.parametrize("format_name", ["speculators", "speculators-v1"])
@pytest.mark.parametrize("name", ["t2d-7.npy", "d2t-7.npy", "draft_vocabulary.json"])
def test_files_of_the_draft_vocabulary_are_checked_and_made_again(run: Run, format_name: str, name: str):
    run.draft_vocabulary, run.format_name = 7, format_name
    finish(run)
    assert not check(run).findings
    good = (run.folder / name).read_bytes()
    for damage in (lambda path: flip(path, 20), Path.unlink):
        damage(run.folder / name)
        check(run)
        assert ticketed(run) == {"dataset": {"files": [f"dataset/{format_name}/{name}"], "store": []}}
        run.package()
        assert (run.folder / name).read_bytes() == good
        assert not check(run).findings


def test_a_dataset_without_the_draft_vocabulary_that_is_asked_for_is_not_in_order(done: Run):
    done.draft_vocabulary = 7
    check(done)
    assert len(ticketed(done)["dataset"]["files"]) == 3
    done.package()
    assert not check(done).findings


def test_copies_are_read_in_full(run: Run):
    run.link = "copy"
    finish(run)
    assert not check(run).findings
    flip(run.folder / "hidden_states/hs_3.safetensors", 1100)
    check(run)
    assert ticketed(run) == {"dataset": {"files": ["dataset/speculators/hidden_states/hs_3.safetensors"], "store": []}}


def test_files_of_the_trainer_are_left_alone(done: Run):
    (done.folder / "t2d-64.npy").touch()
    (done.folder / "d2t-64.npy").touch()
    assert not check(done).findings


def test_foreign_and_broken_files_of_the_store_are_ticketed_to_be_moved(done: Run):
    (done.results.states / "notes.txt").write_text("mine")
    broken = done.state_path("ab" * 16)
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"x" * 3000)
    check(done)
    names = ["states/notes.txt", str(broken.relative_to(done.results.root))]
    assert ticketed(done) == {"dataset": {"files": [], "store": sorted(names)}}
    done.package()
    assert not check(done).findings


def test_orphans_and_left_over_chunks_are_noted_and_no_error(done: Run):
    sample = make_sample(77, 5)
    more = Run(done.root, [*done.chunks, [sample]]).write()
    done.write()
    finish(done)
    verified = check(done)
    assert not verified.findings
    size = more.state_path(more.key(6)).stat().st_size
    assert f"1 states belong to no sample of this run: {size:,} bytes" in verified.findings.notes[0]
    assert "1 folders" in verified.findings.notes[1]
    assert "1 token files" in verified.findings.notes[1]
    flip(more.state_path(more.key(6)), 1100)
    assert check(done).findings.counts == {"foreign or broken files in the store": 1}


def test_a_run_without_any_chunk_has_nothing_to_verify(run: Run):
    for index in range(3):
        run.results.manifest(chunk_name(index)).unlink()
    with pytest.raises(UserError, match="nothing to verify yet"):
        check(run)
    assert tickets(run) == {}


def test_an_unfinished_run_says_what_is_not_there(run: Run):
    run.results.manifest("0001").unlink()
    counts = check(run).findings.counts
    assert counts["chunks without a manifest"] == 1
    assert counts["datasets not packaged yet"] == 1
