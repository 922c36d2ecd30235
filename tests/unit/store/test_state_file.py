"""The canonical header of a state file."""

import dataclasses
import hashlib

import pytest
import torch
from hidden_states.store.state_file import HEADER_BYTES, StateHeader, sample_key
from safetensors import safe_open

HEADER = StateHeader(
    key="ab" * 16,
    fingerprint="cd" * 16,
    layers=(2, 4, 5),
    final="pre_norm",
    dtype="BF16",
    num_tokens=3,
    hidden_size=8,
    checksum="0f" * 16,
)
HEADER_SHA256 = "a9f3a4aa4a240d7e7bdfb25be600d07436f5de662b1e3b1b7a310e1310098d04"


def test_safetensors_reads_what_the_header_describes(tmp_path):
    states = torch.arange(3 * 4 * 8, dtype=torch.float32).to(torch.bfloat16).reshape(3, 4, 8)
    ids = torch.tensor([5, 6, 7])
    file = tmp_path / "state.safetensors"
    file.write_bytes(HEADER.to_bytes() + states.view(torch.uint16).numpy().tobytes() + ids.numpy().tobytes())
    assert file.stat().st_size == HEADER.file_bytes
    with safe_open(file, framework="pt") as opened:
        assert torch.equal(opened.get_tensor("hidden_states"), states)
        assert torch.equal(opened.get_tensor("token_ids"), ids)
        assert opened.metadata()["layers"] == "2,4,5"


@pytest.mark.parametrize("num_tokens", [1, 3, 8])
def test_safetensors_reads_float8_with_its_scales(tmp_path, num_tokens):
    header = dataclasses.replace(HEADER, dtype="F8_E4M3", num_tokens=num_tokens)
    states = torch.arange(num_tokens * 4 * 8, dtype=torch.float32).to(torch.float8_e4m3fn).reshape(num_tokens, 4, 8)
    ids, scales = torch.arange(num_tokens), 0.5 + torch.arange(num_tokens, dtype=torch.float32).view(-1, 1, 1)
    file = tmp_path / "state.safetensors"
    content = [states.view(torch.uint8).numpy().tobytes(), ids.numpy().tobytes(), scales.numpy().tobytes()]
    file.write_bytes(header.to_bytes() + b"".join(content))
    assert file.stat().st_size == header.file_bytes == 1024 + num_tokens * (header.bytes_per_token + 8)
    assert header.bytes_per_token == 4 * 8 + 4
    with safe_open(file, framework="pt") as opened:
        assert torch.equal(opened.get_tensor("hidden_states").view(torch.uint8), states.view(torch.uint8))
        assert torch.equal(opened.get_tensor("hidden_states_scales"), scales)
        assert torch.equal(opened.get_tensor("token_ids"), ids)


def test_a_bfloat16_file_is_byte_for_byte_what_it_was_before_there_was_float8():
    """Or every store would be worth nothing."""
    assert hashlib.sha256(HEADER.to_bytes()).hexdigest() == HEADER_SHA256
    assert (HEADER.bytes_per_token, HEADER.file_bytes) == (64, 1024 + 3 * 72)


def test_header_survives_a_round_trip():
    assert StateHeader.from_bytes(HEADER.to_bytes()) == HEADER
    scaled = dataclasses.replace(HEADER, dtype="F8_E4M3")
    assert StateHeader.from_bytes(scaled.to_bytes()) == scaled
    no_aux = dataclasses.replace(HEADER, layers=())
    assert StateHeader.from_bytes(no_aux.to_bytes()) == no_aux


def test_every_single_flipped_bit_of_a_header_is_found_or_changes_what_it_says():
    raw = HEADER.to_bytes()
    for position in range(HEADER_BYTES):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            try:
                assert StateHeader.from_bytes(bytes(damaged)) != HEADER
            except ValueError:
                continue


def test_a_short_header_is_refused():
    with pytest.raises(ValueError, match="too short"):
        StateHeader.from_bytes(HEADER.to_bytes()[:-1])


def test_the_largest_sensible_header_fits():
    large = dataclasses.replace(
        HEADER, layers=tuple(range(100, 150)), num_tokens=10**7, hidden_size=10**5, dtype="F8_E4M3"
    )
    assert StateHeader.from_bytes(large.to_bytes()) == large


def test_key_is_the_hash_of_the_little_endian_ids():
    ids = torch.tensor([1, 2, 3], dtype=torch.int64).numpy().astype("<i8").tobytes()
    assert sample_key(ids) == sample_key(bytes(ids))
    assert sample_key(ids) != sample_key(ids[::-1])
    assert len(sample_key(ids)) == 32
