"""A name always stands for finished content."""

import json
import os

import pytest
from hidden_states.files import atomic_path, canonical_json, let_no_stranger_write, write_json
from hidden_states.progress import Progress


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
    target = tmp_path / "a" / "file.txt"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(target.read_text()) == {"old": 1}
    assert [path.name for path in target.parent.iterdir()] == ["file.txt"]


def test_equal_content_gives_equal_bytes_whatever_the_key_order(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1, "y": {"b": 2, "a": 3}})
    write_json(tmp_path / "b.json", {"y": {"a": 3, "b": 2}, "x": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})


def test_progress_tells_rate_and_time_left():
    now = [0.0]
    progress = Progress("chunk 0003", 4, total_tokens=4000, clock=lambda: now[0])
    now[0] = 10.0
    progress.add(1, tokens=1000, num_bytes=2_000_000_000)
    assert progress.line() == "chunk 0003: 1/4 samples (25%), 100 tokens/s, 0.20 GB/s, 0:00:30 left"


def test_progress_of_nothing_is_complete():
    assert "(100%)" in Progress("chunk 0001", 0).line()


@pytest.mark.parametrize(("given", "kept"), [(0o000, 0o002), (0o002, 0o002), (0o022, 0o022), (0o077, 0o077)])
def test_a_umask_is_made_no_wider_and_never_lets_strangers_write(given, kept):
    before = os.umask(given)
    try:
        let_no_stranger_write()
        assert os.umask(given) == kept
    finally:
        os.umask(before)
