"""How large the states are: the root mean square of a few tokens' states, of some samples from all over the dataset.

Reads a few kilobytes of each of at most STATES files, however large the dataset is. A layer that drifts, or a chunk
that was captured in another way, shows as a step.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hidden_states.store.checksums import StateFileError, read_header
from hidden_states.store.state_file import HEADER_BYTES, SCALE_BYTES, StateHeader

STATES, TOKENS = 1024, 8
"""Samples of the whole dataset, and tokens of each, that are read at most."""


def _e4m3_values() -> np.ndarray:
    """The value of each byte, float32 [256]: sign, four bits of exponent, three of fraction; 0x7F and 0xFF are NaN."""
    exponent, fraction = (np.arange(128) >> 3), np.arange(128) & 7
    values = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3 = _e4m3_values()


@dataclass
class StateNorms:
    """``samples``: their numbers in the dataset; ``rms``: float32 [slots] for each of them; ``words``: each slot's.
    ``unreadable`` counts the files that were not there or are damaged, which is for ``verify`` to say more about."""

    samples: list[int] = field(default_factory=list)
    rms: list[np.ndarray] = field(default_factory=list)
    unreadable: int = 0

    def add(self, sample: int, path: Path) -> None:
        """Look at one state file."""
        try:
            found = slot_rms(path)
        except (StateFileError, OSError):
            self.unreadable += 1
        else:
            self.samples.append(sample)
            self.rms.append(found)


def chosen_rows(num_rows: int, chunk: int, num_chunks: int) -> list[int]:
    """Which of the ``num_rows`` good rows of this chunk are looked at, so that all chunks have an equal share."""
    if num_chunks > STATES and chunk * STATES // num_chunks == (chunk - 1) * STATES // num_chunks:
        return []
    return evenly(num_rows, max(STATES // num_chunks, 1))


def evenly(length: int, at_most: int) -> list[int]:
    """Numbers below ``length``, each once, spread evenly."""
    return [index * length // at_most for index in range(at_most)] if length > at_most else list(range(length))


def slot_rms(path: Path) -> np.ndarray:
    """The median over a few tokens of the root mean square of their states: float32 [slots].

    The first token is left out where there are others: models park attention there, and it is a hundred times as
    large. Raises StateFileError or OSError.
    """
    header = read_header(path, None).header
    tokens = [1 + token for token in evenly(header.num_tokens - 1, TOKENS)] or [0]
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = [os.pread(descriptor, header.row_bytes, HEADER_BYTES + t * header.row_bytes) for t in tokens]
        scales = np.ones(len(tokens), np.float32)
        if header.is_scaled:
            read = [os.pread(descriptor, SCALE_BYTES, header.scales_offset + t * SCALE_BYTES) for t in tokens]
            scales = np.frombuffer(b"".join(read), "<f4")
    finally:
        os.close(descriptor)
    states = _as_float32(b"".join(raw), header).reshape(len(tokens), header.num_slots, header.hidden_size)
    states = states * scales[:, None, None]
    return np.median(np.sqrt(np.mean(np.square(states), axis=2)), axis=0)


def _as_float32(raw: bytes, header: StateHeader) -> np.ndarray:
    if header.is_scaled:
        return _E4M3[np.frombuffer(raw, np.uint8)]
    if header.dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[header.dtype]).astype(np.float32)
