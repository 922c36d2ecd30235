"""Bytes that a run still needs."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.store.disk_plan import DiskPlan, check_free_space, places, plan_disk, readable, v1_file_bytes
from hidden_states.store.store import Store

SPECIFICATION = SimpleNamespace(fingerprint="a" * 32, layers=(2,), final="pre_norm", dtype="BF16", hidden_size=4)
KEYS = [f"{index:032x}" for index in (1 << 64, 2 << 64, 1 << 64)]
TOKENS = numpy.array([10, 20, 10], dtype=numpy.int32)


def state_bytes(num_tokens: int) -> int:
    return 1024 + num_tokens * (2 * 4 * 2 + 8)


def plan(tmp_path: Path, link: str = "hard", formats: tuple[str, ...] = ("speculators",), concurrency: int = 1):
    settings = {"extraction": {"concurrency": concurrency}, "packaging": {"formats": list(formats), "link": link}}
    return plan_disk(settings, Results(tmp_path), SPECIFICATION, [(KEYS[:2], TOKENS[:2]), (KEYS[2:], TOKENS[2:])])


def test_a_sample_that_occurs_twice_is_stored_once(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert (found.num_samples, found.num_states) == (3, 2)
    assert found.states_bytes == state_bytes(10) + state_bytes(20)
    assert found.bytes_needed == found.states_bytes + found.dump_bytes


def test_two_of_the_longest_samples_per_request_may_lie_in_the_dump(tmp_path: Path) -> None:
    lengths = numpy.full(3, 20, numpy.int32)
    keys = [character * 32 for character in "123"]
    settings = {"extraction": {"concurrency": 1}, "packaging": {"formats": ["speculators"], "link": "hard"}}
    found = plan_disk(settings, Results(tmp_path), SPECIFICATION, [(keys, lengths)])
    assert found.dump_bytes == 2 * state_bytes(20) < found.states_bytes


def test_what_the_store_has_in_the_right_size_is_not_needed_again(tmp_path: Path) -> None:
    path = Store(Results(tmp_path), "a" * 32).path(KEYS[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(state_bytes(10)))
    assert plan(tmp_path).states_bytes == state_bytes(20)
    path.write_bytes(bytes(state_bytes(10) - 1))
    assert plan(tmp_path).num_states == 2


def test_in_flight_is_bounded_by_what_is_missing(tmp_path: Path) -> None:
    assert plan(tmp_path, concurrency=100).dump_bytes == state_bytes(10) + state_bytes(20)


def test_formats_that_copy_are_counted_for_every_sample_less_what_is_there(tmp_path: Path) -> None:
    copies = 2 * state_bytes(10) + state_bytes(20)
    assert plan(tmp_path, link="copy").copies_bytes == copies
    both = plan(tmp_path, formats=("speculators", "speculators-v1"))
    assert both.copies_bytes == 40 * (16 + 16) + 3 * v1_file_bytes(2)
    (tmp_path / "dataset" / "speculators").mkdir(parents=True)
    (tmp_path / "dataset" / "speculators" / "hs_0.safetensors").write_bytes(bytes(100))
    assert plan(tmp_path, link="copy").copies_bytes == copies - 100


def test_too_little_space_is_refused_with_both_numbers(tmp_path: Path) -> None:
    results = Results(tmp_path / "not" / "there" / "yet")
    check_free_space(results, 0, 0)
    with pytest.raises(UserError, match=r"states needs 8\.0 PB .*8,000,000,000,000,000 bytes.*are free"):
        check_free_space(results, 8_000_000_000_000_000, 0)
    check_free_space(results, 0, 8_000_000_000_000_000)  # dumped files become states: they count once


def test_a_dump_directory_on_a_file_system_of_its_own_needs_its_own_space(tmp_path: Path) -> None:
    """/dev/shm is one wherever Linux runs."""
    results, elsewhere = Results(tmp_path), Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        results.dump.symlink_to(elsewhere)
        check_free_space(results, 0, 0)
        with pytest.raises(UserError, match=r"dump needs 8\.0 PB .*lower extraction.concurrency"):
            check_free_space(results, 0, 8_000_000_000_000_000)
        assert [(folder, needed) for folder, needed, _ in places(results, DiskPlan(1, 1, 5, 3, 2))] == [
            (results.root, 7),
            (results.dump, 3),
        ]
    finally:
        elsewhere.rmdir()


def test_bytes_are_readable() -> None:
    assert [readable(number) for number in (0, 999, 1000, 999_960, 57_344_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.0 MB",
        "57.3 GB",
    ]
