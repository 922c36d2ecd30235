"""How many bytes of disk a run will still need, and whether they are free."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy

from hidden_states.errors import UserError
from hidden_states.files import existing, free_bytes
from hidden_states.layout import Results
from hidden_states.store.state_file import NO_CHECKSUM, StateHeader
from hidden_states.store.store import Store

V1_EXTRA_BYTES_PER_TOKEN = 8
"""speculators-v1 keeps the loss mask, as int64, beside ids and states."""

V1_ENTRIES, V1_BYTES_PER_ENTRY = 6, 300
"""Most that a file of speculators-v1 takes beside tensors, for each of its slots and its other entries."""

DUMPED_PER_REQUEST = 2
"""Samples in the dump directory for each request in flight: files are checked while the server goes on."""


class Specification(Protocol):
    """What of a server's specification the size of its states follows from."""

    fingerprint: str
    layers: tuple[int, ...]
    final: str
    dtype: str
    hidden_size: int


@dataclass(frozen=True)
class DiskPlan:
    """Bytes that are not on the disk yet. ``num_states``: different samples among ``num_samples`` that the store lacks.

    ``dump_bytes``: what may lie in the dump directory at one time, before it is checked and published.
    """

    num_samples: int
    num_states: int
    states_bytes: int
    dump_bytes: int
    copies_bytes: int

    @property
    def bytes_needed(self) -> int:
        return self.states_bytes + self.dump_bytes + self.copies_bytes

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    def line(self) -> str:
        """One line for people, such as ``12.3 GB: states 12.0 GB (1,000 to compute), …``."""
        parts = [
            f"{readable(self.bytes_needed)}: states not in the store yet {readable(self.states_bytes)} "
            f"({self.num_states:,} for {self.num_samples:,} samples)",
            f"in flight {readable(self.dump_bytes)}",
        ]
        if self.copies_bytes:
            parts.append(f"copies for packaging {readable(self.copies_bytes)}")
        return ", ".join(parts)


def plan_disk(
    settings: dict[str, Any],
    results: Results,
    specification: Specification,
    samples: Iterable[tuple[list[str], numpy.ndarray]],
) -> DiskPlan:
    """The plan for ``samples``: batches of (keys, int32 [number of keys] tokens of each).

    Counts a sample that occurs twice once, as the store does. A state counts as present when a file of the right size
    has its name. Takes 12 bytes of memory a sample.
    """
    store = Store(results, specification.fingerprint)
    size_of = _state_bytes(specification)
    is_new_store = not store.directory.is_dir()
    missing_keys, missing_tokens, num_samples, all_tokens = [], [], 0, 0
    for keys, num_tokens in samples:
        num_samples += len(keys)
        all_tokens += int(num_tokens.sum(dtype=numpy.int64))
        chosen = [
            index
            for index, key in enumerate(keys)
            if is_new_store or _size(store.path(key)) != size_of(int(num_tokens[index]))
        ]
        missing_keys.append(numpy.array([int(keys[index][:16], 16) for index in chosen], dtype=numpy.uint64))
        missing_tokens.append(num_tokens[chosen])
    tokens = numpy.zeros(0, numpy.int32)
    if missing_keys:
        _, first = numpy.unique(numpy.concatenate(missing_keys), return_index=True)
        tokens = numpy.concatenate(missing_tokens)[first]
    header, per_token = size_of(0), size_of(1) - size_of(0)
    states = header * tokens.size + per_token * int(tokens.sum(dtype=numpy.int64))
    longest = size_of(int(tokens.max())) if tokens.size else 0
    return DiskPlan(
        num_samples=num_samples,
        num_states=int(tokens.size),
        states_bytes=states,
        dump_bytes=min(states, DUMPED_PER_REQUEST * settings["extraction"]["concurrency"] * longest),
        copies_bytes=_copies_bytes(settings, results, specification, num_samples, all_tokens),
    )


def places(results: Results, plan: DiskPlan) -> list[tuple[Path, int, int]]:
    """Where the bytes of ``plan`` will lie: a folder, bytes needed and bytes free, for each file system."""
    needed: dict[int, tuple[Path, int]] = {}
    for folder, num_bytes in (
        (results.states, plan.states_bytes),
        (results.dump, plan.dump_bytes),
        (results.root / "dataset", plan.copies_bytes),
    ):
        first, so_far = needed.get(_device(folder), (folder, 0))
        needed[_device(folder)] = (results.root if so_far else first, so_far + num_bytes)
    return [(folder, num_bytes, free_bytes(folder)) for folder, num_bytes in needed.values()]


def check_free_space(results: Results, states_bytes: int, dump_bytes: int) -> None:
    """Raises UserError, naming bytes needed and free, when the store has no room for ``states_bytes``, or a dump
    directory on a file system of its own none for ``dump_bytes``."""
    _require(results.states, states_bytes, "use fewer conversations or layers")
    if _device(results.dump) != _device(results.states):
        # On one file system a dumped file becomes a state by its name alone.
        _require(results.dump, dump_bytes, "lower extraction.concurrency")


def free_words(results: Results) -> str:
    """What is free where the states are written, such as ``1,000 bytes are free in results/states``."""
    words = f"{free_bytes(results.states):,} bytes are free in {results.states}"
    if _device(results.dump) != _device(results.states):
        words += f" and {free_bytes(results.dump):,} in {results.dump}"
    return words


def _require(folder: Path, num_bytes: int, alternative: str) -> None:
    free = free_bytes(folder)
    if free < num_bytes:
        raise UserError(
            f"no space left: {folder} needs {readable(num_bytes)} ({num_bytes:,} bytes) more, but only "
            f"{readable(free)} ({free:,} bytes) are free. Make space, choose another --directory, or {alternative}; "
            "what is finished stays."
        )


def _device(folder: Path) -> int:
    return existing(folder).stat().st_dev


def readable(num_bytes: int) -> str:
    """Bytes for people, in powers of 1000: ``1.2 GB``."""
    size, units = float(num_bytes), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.95 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{num_bytes} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def _state_bytes(specification: Specification) -> Any:
    def size_of(num_tokens: int) -> int:
        return StateHeader(
            key="0" * 32,
            fingerprint=specification.fingerprint,
            layers=tuple(specification.layers),
            final=specification.final,
            dtype=specification.dtype,
            num_tokens=num_tokens,
            hidden_size=specification.hidden_size,
            checksum=NO_CHECKSUM,
        ).file_bytes

    return size_of


def v1_file_bytes(num_slots: int) -> int:
    """Bytes of a speculators-v1 file beside its tensors, at most."""
    return V1_BYTES_PER_ENTRY * (num_slots + V1_ENTRIES)


def _copies_bytes(
    settings: dict[str, Any], results: Results, specification: Specification, num_samples: int, num_tokens: int
) -> int:
    """Bytes of the packaged formats that do not link, less what is there of them already."""
    size_of = _state_bytes(specification)
    header, per_token = size_of(0), size_of(1) - size_of(0)
    total = 0
    for name in settings["packaging"]["formats"]:
        if name == "speculators-v1":
            size = v1_file_bytes(len(specification.layers) + 1) * num_samples
            size += (per_token + V1_EXTRA_BYTES_PER_TOKEN) * num_tokens
        elif settings["packaging"]["link"] == "copy":
            size = header * num_samples + per_token * num_tokens
        else:
            continue
        total += max(0, size - _folder_bytes(results.dataset(name)))
    return total


def _folder_bytes(folder: Path) -> int:
    return sum(_size(Path(place) / name) for place, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    """Bytes of a file; -1 for none."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1
