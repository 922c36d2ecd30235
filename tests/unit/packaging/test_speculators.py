"""The packaged dataset: what is in it, and what a second run leaves alone."""

import errno
import json
import os
import time

import datasets
import numpy as np
import pytest
import torch
from helpers.finished_run import changed, make_sample, same_inode
from hidden_states.errors import UserError
from hidden_states.packaging import links
from hidden_states.store.checksums import file_checksum
from hidden_states.store.tickets import DATASET, write_ticket


def test_the_table_holds_the_ok_samples_in_order_and_reads_as_tensors(run):
    run.package()
    table = datasets.load_from_disk(str(run.folder))
    good = [sample for chunk in run.chunks for sample in chunk if sample.states is not None]
    assert len(table) == 6
    for row, sample in zip(table, good, strict=True):
        assert set(row) == {"input_ids", "loss_mask", "seq_len"}
        assert row["input_ids"].dtype == row["loss_mask"].dtype == torch.int64
        assert row["input_ids"].tolist() == sample.ids
        assert row["loss_mask"].tolist() == sample.mask
        assert row["seq_len"] == len(sample.ids)
    assert table.with_format(None)["sample_id"][:] == [0, 1, 3, 4, 5, 6]


def test_the_layout_is_that_of_save_to_disk(run, tmp_path):
    run.package()
    datasets.load_from_disk(str(run.folder)).save_to_disk(str(tmp_path / "theirs"), num_shards=3)
    for name in ("dataset_info.json", "state.json"):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (run.folder, tmp_path / "theirs"))
        ours.pop("_fingerprint", None), theirs.pop("_fingerprint", None)
        assert ours == theirs


def test_states_are_hard_links_into_the_store_numbered_by_row(run):
    run.package()
    names = sorted(path.name for path in (run.folder / "hidden_states").iterdir())
    assert names == [f"hs_{row}.safetensors" for row in range(6)]
    for row in range(6):
        assert same_inode(run.folder / "hidden_states" / f"hs_{row}.safetensors", run.state_path(run.key(row)))


def test_token_frequencies_count_only_where_the_loss_counts(run):
    run.package()
    counts = torch.load(run.folder / "token_freq.pt", weights_only=True)
    expected: dict[int, int] = {}
    for sample in (sample for chunk in run.chunks for sample in chunk if sample.states is not None):
        for token, mask in zip(sample.ids, sample.mask, strict=True):
            if mask:
                expected[token] = expected.get(token, 0) + 1
    assert counts == expected


def test_provenance_counts_add_up_and_name_layers_for_each_engine(run):
    content = run.package()
    counts = content["counts"]
    assert (counts["rows"], counts["failed"], counts["failed_reasons"]) == (6, 1, {"timeout": 1})
    assert counts["rows"] + counts["failed"] + counts["rejected"] == counts["rows_read"]
    assert counts["tokens"] == 3 + 4 + 6 + 7 + 8 + 9
    assert content["layers"]["L"] == [2, 4, 5]
    assert content["drafter"]["speculators"]["ids"] == content["drafter"]["vllm"]["ids"] == [2, 4, 5]
    assert content["drafter"]["sglang"]["ids"] == [2, 4, 5]


def test_checksums_cover_every_file_but_states_and_themselves(run):
    run.package()
    recorded = json.loads((run.folder / "checksums.json").read_text())
    assert set(recorded) == {path.name for path in run.folder.iterdir() if path.is_file()} - {"checksums.json"}
    for name, entry in recorded.items():
        assert entry["checksum"] == file_checksum(run.folder / name)
        assert entry["bytes"] == (run.folder / name).stat().st_size


def test_a_second_run_touches_nothing(run):
    run.package()
    before = run.snapshot()
    run.package()
    assert changed(before, run.snapshot()) == set()


def test_provenance_is_made_again_byte_for_byte(run):
    """Snakemake removes the rule's output before it runs the rule again."""
    run.package()
    before = run.snapshot()
    (run.folder / "provenance.json").unlink()
    run.package()
    assert before["provenance.json"][2] == run.snapshot()["provenance.json"][2]
    assert changed(before, run.snapshot()) == {"provenance.json"}


@pytest.mark.parametrize(
    "name",
    ["data-00001-of-00003.arrow", "state.json", "dataset_info.json", "token_freq.pt", "README.md", "checksums.json"],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_written_again_and_nothing_else(run, name, damage):
    run.package()
    before = run.snapshot()
    path = run.folder / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flip" else content[:-3])
    run.package()
    after = run.snapshot()
    assert changed(before, after) - {"provenance.json"} == {name}
    assert after[name][2] == before[name][2]


def test_a_state_computed_again_is_linked_again_and_nothing_else(run):
    run.package()
    before = run.snapshot()
    path = run.state_path(run.key(3))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    run.write().package()
    assert changed(before, run.snapshot()) == {"hidden_states/hs_3.safetensors", "provenance.json"}
    assert same_inode(run.folder / "hidden_states/hs_3.safetensors", path)


def test_a_missing_or_foreign_link_is_made_again(run):
    run.package()
    before = run.snapshot()
    (run.folder / "hidden_states/hs_0.safetensors").unlink()
    foreign = run.folder / "hidden_states/hs_5.safetensors"
    foreign.unlink()
    foreign.write_bytes(b"something else")
    run.package()
    assert {name for name in changed(before, run.snapshot()) if name != "provenance.json"} == set()
    assert same_inode(foreign, run.state_path(run.key(5)))


def test_links_beyond_the_last_row_and_leftovers_go_and_strangers_stay(run):
    run.package()
    folder = run.folder / "hidden_states"
    for name in ("hs_6.safetensors", "hs_01.safetensors", ".hs_3.safetensors.99.tmp", "note.txt"):
        (folder / name).write_text("x")
    run.package()
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"hs_{row}.safetensors" for row in range(6)),
        "note.txt",
    ]


def test_a_sample_that_succeeds_at_last_moves_only_the_rows_after_it(run):
    run.package()
    before = run.snapshot()
    run.chunks[0][2] = make_sample(2, 5)
    run.write().package()
    rows = {f"hidden_states/hs_{row}.safetensors" for row in range(2, 7)}
    papers = {
        "data-00000-of-00003.arrow",
        "state.json",
        "token_freq.pt",
        "README.md",
        "checksums.json",
        "provenance.json",
    }
    assert changed(before, run.snapshot()) == rows | papers
    assert len(datasets.load_from_disk(str(run.folder))) == 7


def test_another_number_of_chunks_leaves_no_old_shard(run):
    run.package()
    run.chunks.pop()
    run.write().package()
    assert len(list(run.folder.glob("data-*.arrow"))) == 2
    assert len(datasets.load_from_disk(str(run.folder))) == 6


def test_one_sequence_that_occurs_twice_is_two_rows_of_one_state(run):
    run.chunks[2].append(run.chunks[0][0])
    run.write().package()
    assert same_inode(run.folder / "hidden_states/hs_0.safetensors", run.folder / "hidden_states/hs_6.safetensors")


def test_chunks_of_two_configurations_are_refused(run):
    run.package()
    other = run.results.manifest("0001").read_bytes()
    run.fingerprint = "e" * 32
    run.write()
    run.results.manifest("0001").write_bytes(other)
    with pytest.raises(UserError, match="2 different configurations"):
        run.package()


def test_a_missing_manifest_is_refused_by_name(run):
    run.results.manifest("0001").unlink()
    with pytest.raises(UserError, match="0001"):
        run.package()


def test_a_manifest_of_other_tokens_is_refused(run):
    manifest = run.results.manifest("0001").read_bytes()
    run.chunks[1] = run.chunks[1][::-1]
    run.write()
    run.results.manifest("0001").write_bytes(manifest)
    with pytest.raises(UserError, match="does not belong to"):
        run.package()


def test_a_damaged_token_file_never_becomes_a_shard(run):
    path = run.results.tokens("0000")
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="0000.parquet"):
        run.package()
    assert not (run.folder / "provenance.json").exists()


@pytest.mark.parametrize("damage", ["missing", "replaced", "cut"])
def test_a_state_file_that_is_not_the_published_one_is_refused(run, damage):
    path = run.state_path(run.key(1))
    status, content = path.stat(), path.read_bytes()
    if damage == "cut":
        path.chmod(0o644)
        os.truncate(path, len(content) - 1)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.unlink()
    if damage == "replaced":
        path.write_bytes(content)
    with pytest.raises(UserError, match=run.key(1)):
        run.package()


def test_a_run_of_failures_only_is_refused(run):
    run.chunks = [[make_sample(0, 3, failed=True)]]
    with pytest.raises(UserError, match="no sample to package"):
        run.write().package()


def test_a_killed_run_leaves_no_provenance(run, monkeypatch):
    run.package()
    run.chunks[0][2] = make_sample(2, 5)
    run.write()
    monkeypatch.setattr("hidden_states.packaging.speculators.write_shards", lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        run.package()
    assert not (run.folder / "provenance.json").exists()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_without_hard_links_it_says_what_a_copy_needs(run, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(links.os, "link", refuse)
    total = sum(run.state_path(run.key(row)).stat().st_size for row in range(6))
    with pytest.raises(UserError, match=rf"packaging.link: copy.*{total:,} bytes"):
        run.package()


def test_copies_are_files_of_their_own_and_stay(run):
    run.link = "copy"
    run.package()
    for row in range(6):
        copy, state = run.folder / f"hidden_states/hs_{row}.safetensors", run.state_path(run.key(row))
        assert not same_inode(copy, state)
        assert copy.read_bytes() == state.read_bytes()
        assert copy.stat().st_mode & 0o777 == 0o444
    before = run.snapshot()
    run.package()
    assert changed(before, run.snapshot()) == set()


def test_changing_between_links_and_copies_replaces_all_states(run):
    run.package()
    for link in ("copy", "hard"):
        run.link = link
        run.package()
        linked = {
            same_inode(run.folder / f"hidden_states/hs_{row}.safetensors", run.state_path(run.key(row)))
            for row in range(6)
        }
        assert linked == {link == "hard"}


def test_a_damaged_copy_in_the_ticket_is_made_again_alone(run):
    run.link = "copy"
    run.package()
    before = run.snapshot()
    copy = run.folder / "hidden_states/hs_2.safetensors"
    status, content = copy.stat(), bytearray(copy.read_bytes())
    content[-20] ^= 1
    copy.chmod(0o644)
    copy.write_bytes(content)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    name = "dataset/speculators/hidden_states/hs_2.safetensors"
    write_ticket(run.results, DATASET, files={name: "checksum_mismatch"}, store={})
    run.package()
    after = run.snapshot()
    assert changed(before, after) - {"provenance.json"} == {"hidden_states/hs_2.safetensors"}
    assert after["hidden_states/hs_2.safetensors"][2] == before["hidden_states/hs_2.safetensors"][2]


def test_a_damaged_state_is_never_copied(run):
    path = run.state_path(run.key(0))
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-20] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    run.link = "copy"
    with pytest.raises(UserError, match=run.key(0)):
        run.package()
    assert list((run.folder / "hidden_states").iterdir()) == []


def test_no_room_for_copies_is_said_before_the_first(run, monkeypatch):
    monkeypatch.setattr(links.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    run.link = "copy"
    with pytest.raises(UserError, match="only 10 are free"):
        run.package()


def test_foreign_store_files_in_the_ticket_go_to_quarantine_and_good_ones_stay(run):
    run.package()
    good = str(run.state_path(run.key(0)).relative_to(run.results.root))
    foreign = run.results.states / "note.txt"
    foreign.write_text("x")
    outside = run.results.root / "tokens" / "summary.json"
    names = [good, "states/note.txt", "states/gone", "states/../tokens/summary.json"]
    write_ticket(run.results, DATASET, files={}, store=dict.fromkeys(names, "foreign"))
    newer = run.results.states / "newer"
    time.sleep(0.01)
    newer.write_text("made after the ticket")
    ticket = json.loads(run.results.ticket(DATASET).read_text())
    ticket["store"]["states/newer"] = "foreign"
    run.results.ticket(DATASET).write_text(json.dumps(ticket))
    before = run.snapshot()
    run.package()
    assert (run.results.quarantine / "states" / "note.txt").exists()
    assert not foreign.exists()
    assert (run.results.root / good).exists() and outside.exists() and newer.exists()
    assert changed(before, run.snapshot()) == set()


def test_a_hundred_thousand_links_take_seconds(tmp_path, run):
    """Links are compared by inode: time grows with the number of rows, never with the size of the states."""
    sample = make_sample(1, 2)
    run.chunks = [[sample] * 10_000, [sample] * 10_000]
    run.write().package()
    start = time.monotonic()
    run.package()
    assert time.monotonic() - start < 5
    assert np.all([(run.folder / "hidden_states" / f"hs_{row}.safetensors").exists() for row in (0, 19_999)])


def test_a_dataset_of_a_server_that_nothing_proved_says_so(run):
    run.package()
    assert "Nothing proves" not in (run.folder / "README.md").read_text()
    ready = json.loads(run.results.ready.read_text())
    run.results.ready.write_text(json.dumps(ready | {"self_check": {"proven": False}}))
    assert run.package()["server"]["self_check"] == {"proven": False}
    assert "**Nothing proves that these states are what they are said to be**" in (run.folder / "README.md").read_text()
