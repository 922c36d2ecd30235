"""A state file that is not exactly what was asked for never passes, and the error says what is wrong."""

import dataclasses
import os

import numpy
import pytest
from helpers.states import header_for, scales_for, states_for, write_state
from hidden_states.store import checksums
from hidden_states.store.checksums import StateFileError, check_state_file, file_checksum, read_header

IDS = [5, 9, 2, 9, 77]


def reason_of(path, expected, ids=IDS):
    with pytest.raises(StateFileError) as caught:
        check_state_file(path, expected, None if ids is None else numpy.array(ids))
    return caught.value.reason


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3"])
@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_a_good_file_passes_and_says_which_file_it_is(file, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(checksums, "BLOCK_BYTES", block_bytes)
    expected = header_for(IDS, dtype=dtype)
    written = write_state(file, IDS, expected)
    checked = check_state_file(file, expected, numpy.array(IDS))
    assert checked.header == written
    status = file.stat()
    assert checked.published == f"{status.st_ino}:{status.st_mtime_ns}"


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_every_flipped_bit_is_found(file, dtype):
    write_state(file, IDS, header_for(IDS, dtype=dtype))
    good = file.read_bytes()
    for position in range(0, len(good), 7):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        try:
            checked = check_state_file(file, header_for(IDS, dtype=dtype), numpy.array(IDS))
        except StateFileError:
            continue
        pytest.fail(f"flipped bit at {position} passed as {checked}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("layers", (2, 4, 6), "wrong_layers"),
        ("layers", (2, 4), "wrong_layers"),
        ("final", "post_norm", "wrong_layers"),
        ("hidden_size", 16, "wrong_shape"),
        ("dtype", "F16", "wrong_shape"),
        ("dtype", "F8_E4M3", "wrong_shape"),
        ("fingerprint", "ab" * 16, "foreign"),
        ("key", "ab" * 16, "foreign"),
    ],
)
def test_a_well_formed_file_of_something_else_is_told_apart(file, field, value, reason):
    write_state(file, IDS)
    assert reason_of(file, dataclasses.replace(header_for(IDS), **{field: value})) == reason


def test_cut_and_grown_files_are_told_apart_at_a_glance(file):
    header = write_state(file, IDS)
    good = file.read_bytes()
    for content, reason in ((good[:-1], "truncated"), (good[:500], "truncated"), (good + b"x", "too_long")):
        file.write_bytes(content)
        with pytest.raises(StateFileError, match=reason):
            read_header(file, header)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_a_value_that_is_not_finite_is_found_with_its_place(file, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(checksums, "BLOCK_BYTES", block_bytes)
    header = header_for(IDS, dtype=dtype)
    infinite = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}[dtype]
    sign = 0x80000000 if dtype == "F32" else 0x8000
    for bits in (infinite, infinite | 1, infinite | sign, infinite | sign | 1):
        states = states_for(header) & ~numpy.array(sign >> 1, dtype=states_for(header).dtype)
        states[3, 2, 6] = bits
        write_state(file, IDS, header, states)
        with pytest.raises(StateFileError, match=r"not_finite: row 3, slot 2 \(layer 5\), column 6"):
            check_state_file(file, header, numpy.array(IDS))
    states[3, 2, 6] = infinite - 1  # the largest finite number
    write_state(file, IDS, header, states)
    check_state_file(file, header, numpy.array(IDS))


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_a_row_of_float8_that_is_not_a_number_is_found_with_its_place(file, monkeypatch, block_bytes):
    monkeypatch.setattr(checksums, "BLOCK_BYTES", block_bytes)
    header = header_for(IDS, dtype="F8_E4M3")
    for bits in (0x7F, 0xFF):
        states = states_for(header)
        states[3, 2, 6] = bits
        write_state(file, IDS, header, states)
        with pytest.raises(StateFileError, match="not_finite: row 3 is not a number"):
            check_state_file(file, header, numpy.array(IDS))
    for largest in (0x7E, 0xFE):
        states[3, 2, 6] = largest
        write_state(file, IDS, header, states)
        check_state_file(file, header, numpy.array(IDS))


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (numpy.nan, "not_finite: row 3 has the scale nan"),
        (numpy.inf, "not_finite: row 3 has the scale inf"),
        (0, "wrong_scale: row 3 has the scale 0.0"),
        (-0.25, "wrong_scale: row 3 has the scale -0.25"),
    ],
)
def test_a_scale_that_is_not_finite_or_not_above_zero_is_found_with_its_row(file, scale, words):
    header = header_for(IDS, dtype="F8_E4M3")
    scales = scales_for(header)
    scales[3] = scale
    write_state(file, IDS, header, scales=scales)
    with pytest.raises(StateFileError, match=words):
        check_state_file(file, header, numpy.array(IDS))


def test_the_checksum_covers_the_scales(file):
    header = header_for(IDS, dtype="F8_E4M3")
    write_state(file, IDS, header)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert reason_of(file, header) == "checksum_mismatch"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3"])
@pytest.mark.parametrize("block_bytes", [16, 64, 1 << 20])
def test_a_state_of_zeros_is_found_with_its_place_and_a_value_of_zero_is_not(file, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(checksums, "BLOCK_BYTES", block_bytes)
    header = header_for(IDS, dtype=dtype)
    states = states_for(header)
    minus = states.dtype.type({"F32": 0x80000000, "F8_E4M3": 0x80}.get(dtype, 0x8000))
    states[1, 1, 0], states[3, 2, :], states[3, 2, 7] = 0, minus, 1
    write_state(file, IDS, header, states)
    check_state_file(file, header, numpy.array(IDS))
    states[3, 2, 7] = 0
    write_state(file, IDS, header, states)
    with pytest.raises(StateFileError, match=r"zero_row: row 3, slot 2 \(layer 5\) is all zeros"):
        check_state_file(file, header, numpy.array(IDS))


def test_ids_that_are_not_those_of_the_key_are_found_without_knowing_what_was_sent(file):
    write_state(file, [*IDS[:-1], 78], header_for(IDS))
    assert reason_of(file, None, ids=None) == "wrong_token_ids"
    assert reason_of(file, header_for(IDS)) == "wrong_token_ids"


def test_ids_that_were_not_sent_are_found(file):
    write_state(file, IDS)
    assert reason_of(file, header_for(IDS), [*IDS[:-1], 78]) == "wrong_token_ids"
    assert reason_of(file, header_for(IDS), IDS[:-1]) == "wrong_token_ids"


def test_a_checksum_that_differs_outranks_what_the_damage_looks_like(file):
    write_state(file, IDS)
    content = bytearray(file.read_bytes())
    content[1024:1026] = b"\xff\xff"  # reads as a NaN, but it is bit rot, not the model
    file.write_bytes(content)
    assert reason_of(file, header_for(IDS)) == "checksum_mismatch"


def test_what_is_no_regular_file_is_foreign_and_what_is_absent_is_missing(tmp_path, file):
    assert reason_of(file, None) == "missing"
    write_state(tmp_path / "other", IDS)
    file.symlink_to(tmp_path / "other")
    assert reason_of(file, None) == "foreign"
    file.unlink()
    os.mkfifo(file)
    assert reason_of(file, None) == "foreign"


def test_checksum_of_a_whole_file_does_not_depend_on_the_block(file, monkeypatch):
    file.write_bytes(bytes(range(256)) * 5)
    whole = file_checksum(file)
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 7)
    assert file_checksum(file) == whole
