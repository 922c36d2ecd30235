"""State files for the tests of the store and of everything that reads it."""

import dataclasses
from pathlib import Path

import numpy
import xxhash
from hidden_states.store.state_file import NO_CHECKSUM, StateHeader, sample_key

FINGERPRINT = "f0" * 16
LAYERS = (2, 4, 5)
HIDDEN_SIZE = 8


def header_for(token_ids: list[int], hidden_size: int = HIDDEN_SIZE, dtype: str = "BF16") -> StateHeader:
    """The header, without a checksum, that states of these ids must have."""
    key = sample_key(numpy.array(token_ids, "<i8").tobytes())
    return StateHeader(key, FINGERPRINT, LAYERS, "pre_norm", dtype, len(token_ids), hidden_size, NO_CHECKSUM)


def states_for(header: StateHeader) -> numpy.ndarray:
    """Finite values as bit patterns, [num_tokens, num_slots, hidden_size]; the same for the same key."""
    unsigned, shift = (numpy.uint32, 16) if header.dtype == "F32" else (numpy.uint16, 0)
    random = numpy.random.default_rng(int(header.key[:8], 16))
    shape = (header.num_tokens, header.num_slots, header.hidden_size)
    if header.is_scaled:
        return (random.integers(0, 0x7F, shape) | (random.integers(0, 2, shape) << 7)).astype(numpy.uint8)
    values = random.integers(0, 0x7000, shape).astype(unsigned) | (random.integers(0, 2, shape) << 15).astype(unsigned)
    return values << unsigned(shift)


def scales_for(header: StateHeader) -> numpy.ndarray:
    """float32 [num_tokens], of which every second one is as small as they get; none without float8."""
    scales = numpy.full(header.num_tokens, 0.25, "<f4")
    scales[1::2] = 1e-12
    return scales if header.is_scaled else scales[:0]


def write_state(
    path: Path,
    token_ids: list[int],
    header: StateHeader | None = None,
    states: numpy.ndarray | None = None,
    scales: numpy.ndarray | None = None,
) -> StateHeader:
    """Write a state file whose checksum is right, whatever else is wrong with it; return its header."""
    header = header or header_for(token_ids)
    states = states_for(header) if states is None else states
    scales = scales_for(header) if scales is None else scales
    content = states.tobytes() + numpy.array(token_ids, "<i8").tobytes() + scales.tobytes()
    header = dataclasses.replace(header, checksum=xxhash.xxh3_128_hexdigest(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.to_bytes() + content)
    return header
