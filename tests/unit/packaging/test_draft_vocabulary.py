"""The drafter's vocabulary: chosen by the counts alone, written as the trainer reads it, and figures that add up."""

import json
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.finished_run import FINGERPRINT, VOCABULARY, Run, make_sample
from hidden_states.errors import UserError
from hidden_states.packaging.draft_vocabulary import choose_ids
from hidden_states.packaging.frequencies import TokenCounts

SIZE = 7
NAMES = {"t2d-7.npy", "d2t-7.npy", "draft_vocabulary.json"}


def counted(run: Run) -> Counter:
    """Independently of the product: ids with loss of the packaged rows."""
    good = [sample for chunk in run.chunks for sample in chunk if sample.states is not None]
    return Counter(token for sample in good for token, mask in zip(sample.ids, sample.mask, strict=True) if mask)


def files(run: Run) -> set[str]:
    return {
        path.name for path in run.folder.iterdir() if "2d-" in path.name or "2t-" in path.name or "draft" in path.name
    }


@pytest.fixture(params=["speculators", "speculators-v1"])
def drafted(run: Run, request) -> Run:
    run.format_name, run.draft_vocabulary = request.param, SIZE
    run.package()
    return run


def test_the_most_frequent_ids_are_chosen_and_of_equal_ones_the_lower() -> None:
    counts = np.array([0, 3, 0, 1, 9, 1, 1])
    assert choose_ids(counts, 1).tolist() == [4]
    assert choose_ids(counts, 3).tolist() == [1, 3, 4]
    assert choose_ids(counts, 6).tolist() == [0, 1, 3, 4, 5, 6]
    assert choose_ids(counts, 7).tolist() == list(range(7))


def test_both_mappings_hold_the_same_ids(drafted: Run) -> None:
    t2d, d2t = np.load(drafted.folder / "t2d-7.npy"), np.load(drafted.folder / "d2t-7.npy")
    assert (t2d.dtype, t2d.shape, d2t.dtype, d2t.shape) == (np.bool_, (VOCABULARY,), np.int64, (SIZE,))
    counts = counted(drafted)
    expected = sorted(sorted(range(VOCABULARY), key=lambda token: (-counts[token], token))[:SIZE])
    assert (d2t + np.arange(SIZE)).tolist() == np.flatnonzero(t2d).tolist() == expected


def test_the_share_of_the_loss_is_recorded_wherever_people_look(drafted: Run) -> None:
    counts = counted(drafted)
    figures = json.loads((drafted.folder / "draft_vocabulary.json").read_text())
    most = [count for _, count in counts.most_common()]
    assert figures["covered"] == sum(most[:SIZE]) and figures["loss_tokens"] == sum(most)
    assert figures["share"] == pytest.approx(sum(most[:SIZE]) / sum(most))
    assert figures["ids_used"] == len(counts) and figures["model_ids"] == VOCABULARY
    content = json.loads((drafted.folder / "provenance.json").read_text())
    assert content["draft_vocabulary"] == figures
    card = (drafted.folder / "README.md").read_text()
    assert f"7 of the model's 50 ids cover {figures['share']:.2%}" in card and "`t2d-7.npy`" in card
    words = shlex.split(content["train"])
    if drafted.format_name == "speculators":
        assert words[words.index("--draft-vocab-size") + 1] == "7"
    else:
        assert words[words.index("--d2t-path") + 1] == str(drafted.folder / "d2t-7.npy")
        assert words[words.index("--t2d-path") + 1] == str(drafted.folder / "t2d-7.npy")


def test_packaging_again_touches_nothing_and_counts_nothing(drafted: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drafted.snapshot()
    monkeypatch.setattr(TokenCounts, "counts", property(lambda self: pytest.fail("counted again")))
    drafted.package()
    assert drafted.snapshot() == before


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!")])
def test_a_damaged_file_is_made_again(drafted: Run, name: str, damage) -> None:
    before = drafted.snapshot()
    damage(drafted.folder / name)
    drafted.package()
    assert {name: entry[2] for name, entry in drafted.snapshot().items()} == {
        name: entry[2] for name, entry in before.items()
    }


def test_mappings_of_another_size_do_not_stay(drafted: Run) -> None:
    drafted.draft_vocabulary = 9
    drafted.package()
    assert files(drafted) == {"t2d-9.npy", "d2t-9.npy", "draft_vocabulary.json"}
    drafted.draft_vocabulary = None
    content = drafted.package()
    assert files(drafted) == set() and content["draft_vocabulary"] is None
    assert "draft_vocabulary" not in (drafted.folder / "checksums.json").read_text()


def test_only_files_of_the_dataset_are_taken_away(drafted: Run) -> None:
    mine, outside = drafted.folder / "t2d-12.npy", drafted.root / "mine"
    mine.write_bytes(b"of the trainer")
    outside.write_bytes(b"of the user")
    checksums = drafted.folder / "checksums.json"
    listed = json.loads(checksums.read_text())
    checksums.write_text(json.dumps(listed | {"../../../mine": {"bytes": 1, "checksum": "0"}}))
    drafted.draft_vocabulary = None
    drafted.package()
    assert mine.exists() and outside.exists()


def test_more_ids_than_the_model_has_are_refused(run: Run) -> None:
    run.draft_vocabulary = VOCABULARY
    run.package()
    run.draft_vocabulary = VOCABULARY + 1
    with pytest.raises(UserError, match=r"packaging.draft_vocabulary = 51: the model has 50 ids"):
        run.package()


def test_fewer_ids_in_use_than_asked_for_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, [[make_sample(1, 5)]], fingerprint=FINGERPRINT, draft_vocabulary=40).write()
    run.package()
    assert f"but only {len(counted(run))} ids occur where the loss counts" in caplog.text
    assert int(np.load(run.folder / "t2d-40.npy").sum()) == 40
