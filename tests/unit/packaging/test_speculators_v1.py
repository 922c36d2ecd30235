"""The dataset in the format of speculators 0.3 and 0.4: what is in it, and what a second run leaves alone."""

import json
import logging
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.finished_run import Run, changed, make_sample
from hidden_states.errors import UserError
from hidden_states.packaging import samples
from hidden_states.packaging.sample_file import BLOCK_BYTES, Entry, Layout, sample_problem, sample_source, write_sample
from hidden_states.store.checksums import StateFileError, file_checksum
from hidden_states.store.disk_plan import V1_EXTRA_BYTES_PER_TOKEN, v1_file_bytes
from hidden_states.store.tickets import DATASET, write_ticket

NAMES = ["README.md", "checksums.json", "data_config.json", "provenance.json", "sample_lengths.json", "token_freq.bin"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three chunks with seven samples, one of them failed (the third of the first chunk); the last chunk is empty."""
    first = [make_sample(seed, 3 + seed, failed=seed == 2) for seed in range(4)]
    second = [make_sample(seed, 3 + seed) for seed in range(4, 7)]
    return Run(tmp_path, [first, second, []], format_name="speculators-v1").write()


def good(run: Run) -> list:
    return [sample for chunk in run.chunks for sample in chunk if sample.states is not None]


def damage(path: Path, position: int, keep_time: bool = False) -> None:
    """Flip a bit of the byte at ``position``."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_every_row_is_a_file_that_torch_reads_without_its_pickles(run):
    run.package()
    assert sorted(path.name for path in run.folder.iterdir()) == sorted(
        [*NAMES, *(f"data_{row}.pt" for row in range(6))]
    )
    for row, sample in enumerate(good(run)):
        for mmap in (True, False):
            found = torch.load(run.folder / f"data_{row}.pt", weights_only=True, mmap=mmap)
            assert list(found) == ["input_ids", "hidden_states", "loss_mask"]
            assert found["input_ids"].dtype == found["loss_mask"].dtype == torch.int64
            assert found["input_ids"].tolist() == sample.ids
            assert found["loss_mask"].tolist() == sample.mask
            states = torch.from_numpy(sample.states).view(torch.bfloat16)
            assert isinstance(found["hidden_states"], list) and len(found["hidden_states"]) == 4
            for slot, tensor in enumerate(found["hidden_states"]):
                assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous() and not tensor.requires_grad
                assert torch.equal(tensor.view(torch.int16), states[:, slot].view(torch.int16))


def test_the_archive_is_what_torch_writes_for_the_same_tensors(run, tmp_path):
    run.package()
    sample = good(run)[0]
    tensors = {
        "input_ids": torch.tensor(sample.ids),
        "hidden_states": [torch.from_numpy(sample.states[:, slot].copy()).view(torch.bfloat16) for slot in range(4)],
        "loss_mask": torch.tensor(sample.mask),
    }
    torch.save(tensors, tmp_path / "theirs.pt")
    with zipfile.ZipFile(run.folder / "data_0.pt") as ours, zipfile.ZipFile(tmp_path / "theirs.pt") as theirs:
        assert ours.testzip() is None
        for name in ("data.pkl", "byteorder", "version", *(f"data/{number}" for number in range(6))):
            assert ours.read(f"archive/{name}") == theirs.read(f"theirs/{name}"), name


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_tensors_are_aligned_and_the_disk_plan_counts_enough_for_any_number_of_slots(dtype):
    for slots in range(2, 34):
        for num_tokens in (1, 2, 8191, 1 << 20):
            layout = Layout(num_tokens, slots, 7, dtype)
            assert all(entry.data_offset % 64 == 0 for entry in layout.entries)
            rest = layout.file_bytes - num_tokens * (slots * layout.slot_row_bytes + 8 + V1_EXTRA_BYTES_PER_TOKEN)
            assert 0.5 * v1_file_bytes(slots) < rest <= v1_file_bytes(slots)


def test_a_sample_of_several_blocks_is_written_whole(tmp_path):
    num_tokens = 3 * BLOCK_BYTES // 32 + 5
    sample = make_sample(3, num_tokens)
    run = Run(tmp_path, [[sample]], format_name="speculators-v1").write()
    run.package()
    found = torch.load(run.folder / "data_0.pt", weights_only=True)
    states = torch.from_numpy(sample.states).view(torch.int16)
    assert all(
        torch.equal(tensor.view(torch.int16), states[:, slot]) for slot, tensor in enumerate(found["hidden_states"])
    )
    assert found["input_ids"].tolist() == sample.ids


def test_sizes_and_places_beyond_four_gigabytes_are_those_of_zip64():
    """Headers are compared with those of the standard library; no file that large is written."""
    large = Entry("archive/data/1", 128, 5 << 30)
    theirs = zipfile.ZipInfo(large.name, (1980, 0, 0, 0, 0, 0))
    theirs.file_size = theirs.compress_size = large.size
    theirs.CRC, theirs.create_version = 7, 45
    ours = large.local(7)
    assert ours[:10] == theirs.FileHeader()[:10] and ours[14:26] == theirs.FileHeader()[14:26]
    assert theirs.FileHeader()[30 + len(large.name) :] == ours[30 + len(large.name) :][:20]
    layout = Layout(1 << 20, 4, 1024, "BF16")
    assert layout.file_bytes > 8 << 30
    tail = layout.tail([0] * len(layout.entries), "0" * 32, "0" * 32)

    class Sparse:
        """The file, with nothing before its tail."""

        position = 0

        def seek(self, offset: int, whence: int = 0) -> int:
            self.position = offset + {0: 0, 1: self.position, 2: layout.file_bytes}[whence]
            return self.position

        def tell(self) -> int:
            return self.position

        def seekable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            start = self.position - layout.seal.offset
            assert start >= 0
            found = tail[start:] if size < 0 else tail[start : start + size]
            self.position += len(found)
            return found

    with zipfile.ZipFile(Sparse()) as archive:
        entries = [(entry.name, entry.offset, entry.size) for entry in [*layout.entries, layout.seal]]
        assert [(info.filename, info.header_offset, info.file_size) for info in archive.infolist()] == entries
        assert json.loads(archive.read(layout.seal.name)) == {"checksum": "0" * 32, "source": "0" * 32}


def test_layer_ids_are_one_less_than_layers_and_end_with_the_last(run):
    content = run.package()
    config = json.loads((run.folder / "data_config.json").read_text())
    assert content["layers"]["L"] == [2, 4, 5]
    assert config["hidden_states"]["layer_ids"] == content["layers"]["layer_ids"] == [1, 3, 4, 7]
    assert config["format"]["schema"]["hidden_states"]["num_tensors"] == 4
    assert config["format"]["file_pattern"] == "data_{idx}.pt"
    assert (config["model"]["hidden_size"], config["data"]["num_samples"], config["version"]) == (4, 6, "2.0")


def test_lengths_are_those_of_the_rows_by_number_as_text(run):
    run.package()
    lengths = json.loads((run.folder / "sample_lengths.json").read_text())
    assert lengths == {str(row): len(sample.ids) for row, sample in enumerate(good(run))}


def test_token_counts_do_not_pass_for_a_row(run):
    """The readers take every name that ends in ``pt``, at any depth."""
    run.package()
    rows = [path for path in run.folder.rglob("*") if path.name.endswith("pt")]
    assert {path.name for path in rows} == {f"data_{row}.pt" for row in range(6)}
    counts = torch.load(run.folder / "token_freq.bin", weights_only=True)
    assert sum(counts.values()) == sum(sum(sample.mask) for sample in good(run))


def test_card_and_provenance_say_what_each_trainer_does_to_the_final_state(run):
    content = run.package()
    card = (run.folder / "README.md").read_text()
    for text in (
        "speculators 0.4 applies norm",
        "speculators 0.3 applies lm_head alone",
        "[1, 3, 4, 7]",
        "data_{row}.pt",
    ):
        assert text in card
    assert content["format"] == "speculators-v1"
    assert "--target-layer-ids" not in card
    assert set(content["layers"]["trainers"]) == {"0.3", "0.4"}
    assert content["train"].startswith("python speculators/scripts/train.py") and str(run.folder) in content["train"]


def test_another_number_of_layers_than_the_trainers_take_is_said(tmp_path, caplog):
    run = Run(tmp_path, [[make_sample(1, 5)]], layers=(2, 5, 7), format_name="speculators-v1")
    run.chunks[0][0].states = run.chunks[0][0].states[:, :3].copy()
    run.layers = (2, 5)
    with caplog.at_level(logging.WARNING):
        run.write().package()
    assert "three layers" in caplog.text and "three layers" in (run.folder / "README.md").read_text()


def test_a_second_run_touches_nothing_and_equal_input_gives_equal_bytes(run, tmp_path):
    run.package()
    before = run.snapshot()
    run.package()
    assert changed(before, run.snapshot()) == set()
    other = Run(tmp_path / "other", run.chunks, model=run.model, format_name="speculators-v1").write()
    other.package()
    for row in range(6):
        assert (other.folder / f"data_{row}.pt").read_bytes() == (run.folder / f"data_{row}.pt").read_bytes()


@pytest.mark.parametrize("killed_at", range(6))
def test_a_run_killed_at_any_file_goes_on_from_there(run, monkeypatch, killed_at):
    """The file being written is lost, those before it are not written again."""
    written, real = [], samples.write_sample
    monkeypatch.setattr("hidden_states.pool.num_threads", lambda: 1)

    def write(path: Path, *arguments: object) -> None:
        if len(written) == killed_at:
            path.write_bytes(b"half of it")
            os._exit(9)
        real(path, *arguments)
        written.append(path.name)

    monkeypatch.setattr(samples, "write_sample", write)
    run.folder.mkdir(parents=True)
    (run.folder / "provenance.json").write_text("of an earlier dataset")
    child = os.fork()
    if child == 0:
        run.package()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (run.folder / "provenance.json").exists() == (killed_at == 0), "it goes before the first row changes"
    assert len(list(run.folder.glob(".data_*.tmp"))) == 1
    done = run.snapshot()
    assert {f"data_{row}.pt" for row in range(killed_at)} == {name for name in done if name.endswith(".pt")}
    monkeypatch.setattr(samples, "write_sample", real)
    run.package()
    after = run.snapshot()
    assert {name for name in after if name.endswith(".pt")} == {f"data_{row}.pt" for row in range(6)}
    assert all(after[f"data_{row}.pt"] == done[f"data_{row}.pt"] for row in range(killed_at))
    assert not list(run.folder.glob(".*"))


@pytest.mark.parametrize("kind", ["flip", "cut", "remove", "other row", "link"])
def test_a_file_that_is_not_right_is_written_again_and_nothing_else(run, kind, tmp_path):
    run.package()
    before = run.snapshot()
    path = run.folder / "data_3.pt"
    content = path.read_bytes()
    if kind == "flip":
        damage(path, 1000)
    else:
        path.unlink()
    if kind == "cut":
        path.write_bytes(content[:-3])
    if kind == "other row":
        path.write_bytes((run.folder / "data_4.pt").read_bytes())
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    run.package()
    after = run.snapshot()
    assert changed(before, after) - {"provenance.json"} <= {"data_3.pt"}
    assert path.read_bytes() == content and not path.is_symlink()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "provenance.json"])
def test_a_damaged_paper_is_written_again_and_nothing_else(run, name):
    run.package()
    before = run.snapshot()
    damage(run.folder / name, 5)
    run.package()
    after = run.snapshot()
    assert changed(before, after) - {"provenance.json"} == {name}
    assert after[name][2] == before[name][2]


def test_a_file_of_another_time_is_read_and_kept(run):
    """As after a copy of the whole run to another disk."""
    run.package()
    before = {path.name: path.stat().st_ino for path in run.folder.iterdir()}
    for path in run.folder.glob("data_*.pt"):
        os.utime(path)
    run.package()
    assert {path.name: path.stat().st_ino for path in run.folder.iterdir()} == before
    state = run.state_path(run.key(0))
    assert (run.folder / "data_0.pt").stat().st_mtime_ns == state.stat().st_mtime_ns


def test_damage_that_keeps_size_and_time_is_repaired_from_the_ticket(run):
    run.package()
    before = run.snapshot()
    damage(run.folder / "data_2.pt", 1000, keep_time=True)
    damaged = run.snapshot()
    run.package()
    assert changed(damaged, run.snapshot()) == set(), "only a full reading finds it"
    names = ["data_2.pt", "data_1.pt"]
    write_ticket(run.results, DATASET, files={f"dataset/speculators-v1/{name}": "x" for name in names}, store={})
    run.package()
    after = run.snapshot()
    assert {name for name in after if after[name][2] != before[name][2]} == set()
    assert {name for name in after if name.endswith(".pt") and after[name] != damaged[name]} == {"data_2.pt"}


def test_other_states_or_another_mask_of_a_row_write_that_row_alone(run):
    run.package()
    before = run.snapshot()
    sample = run.chunks[1][0]
    sample.mask = [1 - value for value in sample.mask]
    run.write().package()
    masked = run.snapshot()
    assert {name for name in changed(before, masked) if name.endswith(".pt")} == {"data_3.pt"}
    run.state_path(run.key(1)).unlink()
    run.chunks[0][1].states = run.chunks[0][1].states + 1
    run.write().package()
    assert {name for name in changed(masked, run.snapshot()) if name.endswith(".pt")} == {"data_1.pt"}


def test_one_sequence_with_two_masks_is_two_rows(run):
    run.chunks[2].append(make_sample(0, 3))
    run.chunks[2][0].mask = [1, 1, 1]
    run.write().package()
    assert torch.load(run.folder / "data_6.pt", weights_only=True)["loss_mask"].tolist() == [1, 1, 1]
    assert torch.load(run.folder / "data_0.pt", weights_only=True)["loss_mask"].tolist() == run.chunks[0][0].mask


def test_rows_beyond_the_last_go_and_what_passes_for_a_row_is_moved_away(run):
    run.package()
    (run.folder / "data_6.pt").write_text("x")
    (run.folder / ".data_3.pt.99.tmp").write_text("x")
    (run.folder / "note.txt").write_text("x")
    (run.folder / "checkpoints").mkdir()
    for name in ("token_freq.pt", "data_01.pt", "checkpoints/data_0.pt", "receipt"):
        (run.folder / name).write_text("x")
    run.package()
    rows = {path.name for path in run.folder.rglob("*") if path.name.endswith("pt")}
    assert rows == {f"data_{row}.pt" for row in range(6)}
    assert (run.folder / "note.txt").exists()
    moved = run.results.quarantine / "dataset" / "speculators-v1"
    assert (moved / "token_freq.pt").exists() and (moved / "checkpoints" / "data_0.pt").exists()
    assert (moved / "receipt").exists()


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_a_state_that_is_not_the_published_one_never_becomes_a_row(run, kind):
    path = run.state_path(run.key(1))
    if kind == "missing":
        path.unlink()
    else:
        damage(path, -20, keep_time=True)
    with pytest.raises(UserError, match=run.key(1)):
        run.package()
    assert not (run.folder / "data_1.pt").exists() and not list(run.folder.glob(".*"))
    assert not (run.folder / "provenance.json").exists()


def test_a_disk_that_loses_what_is_written_is_noticed(run, monkeypatch, tmp_path):
    real = os.pwrite

    def lose(descriptor: int, data: bytes, offset: int) -> int:
        return real(descriptor, bytes(len(data)) if len(data) == 3 * 8 else data, offset)

    monkeypatch.setattr("hidden_states.packaging.sample_file.os.pwrite", lose)
    state, mask = run.state_path(run.key(0)), np.array(good(run)[0].mask, np.int8)
    header, _ = run.state_bytes(run.key(0), good(run)[0])
    with pytest.raises(StateFileError, match="not what was written"):
        write_sample(tmp_path / "data_0.pt", Layout(3, 4, 4, "BF16"), state, header.checksum, mask)


def test_any_changed_byte_of_a_file_is_found_by_reading_it(run):
    run.package()
    path, sample = run.folder / "data_0.pt", good(run)[0]
    header, _ = run.state_bytes(run.key(0), sample)
    layout, source = Layout(3, 4, 4, "BF16"), sample_source(header.checksum, np.array(sample.mask, np.int8))
    assert sample_problem(path, layout, source, full=True) is None
    path.chmod(0o644)
    with open(path, "r+b", buffering=0) as file:
        for position, value in enumerate(path.read_bytes()):
            os.pwrite(file.fileno(), bytes([value ^ 1]), position)
            assert sample_problem(path, layout, source, full=True) is not None, position
            os.pwrite(file.fileno(), bytes([value]), position)
    assert sample_problem(path, layout, "0" * 32, full=True) == "it was made from other states or another loss mask"


def test_no_room_is_said_before_the_first_with_both_numbers(run, monkeypatch):
    monkeypatch.setattr(samples.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(UserError, match=r"needs .*bytes\) more .*only 10 bytes \(10 bytes\) are free") as caught:
        run.package()
    needed = int(re.search(r"\(([\d,]+) bytes\) more", str(caught.value))[1].replace(",", ""))
    assert not list(run.folder.glob("*.pt"))
    monkeypatch.undo()
    run.package()
    size = sum(path.stat().st_size for path in run.folder.glob("*.pt"))
    assert size - 6 * 64 * 8 < needed < size + 6 * 64 * 8
    monkeypatch.setattr(samples.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 6 * 64 * 8})())
    run.package()


def test_a_run_without_any_good_sample_is_refused(tmp_path):
    for chunks in ([[make_sample(0, 3, failed=True)]], [[], []]):
        with pytest.raises(UserError, match="no sample to package"):
            Run(tmp_path, chunks, format_name="speculators-v1").write().package()


def test_a_damaged_token_file_never_becomes_a_mask(run):
    damage(run.results.tokens("0000"), 40)
    with pytest.raises(UserError, match="0000.parquet"):
        run.package()
    assert not (run.folder / "provenance.json").exists()


def test_checksums_cover_every_file_but_rows_and_themselves(run):
    run.package()
    recorded = json.loads((run.folder / "checksums.json").read_text())
    assert set(recorded) == set(NAMES) - {"checksums.json"}
    for name, entry in recorded.items():
        assert entry["checksum"] == file_checksum(run.folder / name)


def test_many_rows_that_are_right_take_seconds(tmp_path):
    run = Run(tmp_path, [[make_sample(1, 2)] * 4000], format_name="speculators-v1").write()
    run.package()
    before = run.snapshot()
    import time

    start = time.monotonic()
    run.package()
    assert time.monotonic() - start < 4
    assert changed(before, run.snapshot()) == set()
