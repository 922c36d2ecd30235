"""One sample of a speculators v1 dataset: ``data_{row}.pt``, which ``torch.load`` reads.

Such a file is a zip archive without compression: ``data.pkl`` says which tensors there are, ``data/{number}`` holds the
bytes of each. All places follow from the shape, so the file is written by copying block by block from the state file,
however long the sample is. Equal input gives equal bytes, whatever torch is installed.

The last entry, which torch does not look at, is the seal: ``source``, the digest of what the file was made from, and
``checksum``, XXH3-128 of every byte before the entry. What follows it is determined by the rest. So a file proves by
itself that it is whole, and of what; no pickle is ever read for that.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (zip), torch's docs/source/notes/serialization.rst.
"""

import functools
import hashlib
import io
import json
import math
import os
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import xxhash

from hidden_states.store.checksums import StateFileError, read_header
from hidden_states.store.state_file import DTYPE_BYTES, HEADER_BYTES, StateHeader

LAYOUT_VERSION = "1"
"""Part of every file's source: a change of the layout makes all files anew."""

BLOCK_BYTES = 1 << 20
ALIGNMENT = 64
"""Tensors begin at multiples of it, as torch has them, so that they can be used where they are mapped."""

SEAL = "archive/.data/hidden_states"
LOCAL, CENTRAL, END, END64, LOCATOR64 = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
FULL_32, FULL_16 = 0xFFFFFFFF, 0xFFFF
STORAGES = {"BF16": "BFloat16Storage", "F16": "HalfStorage", "F32": "FloatStorage"}


@dataclass(frozen=True)
class Entry:
    """One file of the archive: where its header begins, and its size in bytes."""

    name: str
    offset: int
    size: int

    @property
    def data_offset(self) -> int:
        start = self.offset + 30 + len(self.name) + len(self._zip64()) + 4
        return start + -start % ALIGNMENT

    @property
    def end(self) -> int:
        return self.data_offset + self.size

    def local(self, crc: int) -> bytes:
        """The header before the data; its extra field is as long as the alignment needs."""
        zip64 = self._zip64()
        padding = self.data_offset - self.offset - 30 - len(self.name) - len(zip64) - 4
        extra = zip64 + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        return LOCAL + self._common(crc, len(extra)) + self.name.encode() + extra

    def central(self, crc: int) -> bytes:
        """The entry's line in the directory at the end."""
        large = ([self.size, self.size] if self.size >= FULL_32 else []) + (
            [self.offset] if self.offset >= FULL_32 else []
        )
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        place = struct.pack("<3H2I", 0, 0, 0, 0, min(self.offset, FULL_32))
        return CENTRAL + b"\x2d\0" + self._common(crc, len(extra)) + place + self.name.encode() + extra

    def _zip64(self) -> bytes:
        return struct.pack("<2H2Q", 1, 16, self.size, self.size) if self.size >= FULL_32 else b""

    def _common(self, crc: int, extra: int) -> bytes:
        size = min(self.size, FULL_32)
        return struct.pack("<5H3I2H", 45, 0, 0, 0, 0, crc, size, size, len(self.name), extra)


class Layout:
    """Where everything is in the file of a sample with ``num_tokens`` rows of ``num_slots`` states of ``hidden_size``
    values of ``dtype`` (as in a state file's header)."""

    def __init__(self, num_tokens: int, num_slots: int, hidden_size: int, dtype: str) -> None:
        self.num_tokens, self.num_slots, self.hidden_size, self.dtype = num_tokens, num_slots, hidden_size, dtype
        self.slot_row_bytes = hidden_size * DTYPE_BYTES[dtype]
        self.constants = {
            "data.pkl": _tensors(num_tokens, num_slots, hidden_size, STORAGES[dtype]),
            "byteorder": b"little",
            "version": b"3\n",
        }
        tensors = [8 * num_tokens, *[num_tokens * self.slot_row_bytes] * num_slots, 8 * num_tokens]
        sizes = [(name, len(self.constants[name])) for name in ("data.pkl", "byteorder")]
        sizes += [(f"data/{number}", size) for number, size in enumerate(tensors)]
        self.entries: list[Entry] = []
        offset = 0
        for name, size in [*sizes, ("version", len(self.constants["version"]))]:
            self.entries.append(Entry(f"archive/{name}", offset, size))
            offset = self.entries[-1].end
        self.seal = Entry(SEAL, offset, len(_seal("0" * 32, "0" * 32)))
        self.file_bytes = offset + len(self.tail([0] * len(self.entries), "0" * 32, "0" * 32))

    @property
    def ids(self) -> int:
        """Number of the entry with the token ids; the slots and then the loss mask follow it."""
        return 2

    @property
    def mask(self) -> int:
        return self.ids + self.num_slots + 1

    def tail(self, crcs: list[int], source: str, checksum: str) -> bytes:
        """Everything from the seal's header to the end of the file. ``crcs``: CRC-32 of every entry before it."""
        seal = _seal(source, checksum)
        crc = zlib.crc32(seal)
        start = self.seal.local(crc) + seal
        directory = b"".join(entry.central(crc) for entry, crc in zip(self.entries, crcs, strict=True))
        directory += self.seal.central(crc)
        return start + directory + _end(len(self.entries) + 1, len(directory), self.seal.offset + len(start))


@functools.lru_cache(1024)
def sample_layout(num_tokens: int, num_slots: int, hidden_size: int, dtype: str) -> Layout:
    """The layout of a sample; lengths repeat, and many files are looked at when a dataset is packaged again."""
    return Layout(num_tokens, num_slots, hidden_size, dtype)


def sample_source(state_checksum: str, mask: numpy.ndarray) -> str:
    """What a file is made from, in hex: the checksum of states and token ids, and the loss mask, int8 [num_tokens]."""
    digest = hashlib.blake2b(f"{LAYOUT_VERSION}|{state_checksum}|".encode(), digest_size=16)
    digest.update(numpy.ascontiguousarray(mask, numpy.int8))
    return digest.hexdigest()


def write_sample(path: Path, layout: Layout, state: Path, state_checksum: str, mask: numpy.ndarray) -> None:
    """Write a file from a state file and a loss mask, int8 [num_tokens]; make it durable and read it back.

    Raises StateFileError when the state file is not what its manifest recorded (``state_checksum``) and ``written``
    when what is read back is not what was written; the file is then not to be used.
    """
    header = read_header(state, None).header
    if (header.num_tokens, header.num_slots, header.hidden_size, header.dtype) != (
        *(layout.num_tokens, layout.num_slots, layout.hidden_size),
        layout.dtype,
    ):
        raise StateFileError("wrong_shape", f"{state} has other states than its manifest recorded")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        crcs = _write_entries(descriptor, layout, state, header, state_checksum, mask)
        os.fsync(descriptor)
        found, checksum = _read_entries(descriptor, layout)
        if found != crcs:
            raise StateFileError("written", f"{path} is not what was written to it: the disk or memory is faulty")
        _write_at(descriptor, layout.tail(crcs, sample_source(state_checksum, mask), checksum), layout.seal.offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sample_problem(path: Path, layout: Layout, source: str, full: bool) -> str | None:
    """What is wrong with a file that should have been made from ``source``; None where nothing is.

    ``full``: every byte is read. Otherwise size and seal are looked at, which finds other content but no damage.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    try:
        size = os.fstat(descriptor).st_size
        if size != layout.file_bytes:
            return f"{size:,} bytes instead of {layout.file_bytes:,}"
        tail = os.pread(descriptor, layout.file_bytes - layout.seal.offset, layout.seal.offset)
        claimed = _claimed(layout, tail)
        if claimed is None:
            return "its seal is damaged"
        crcs, found, checksum = claimed
        if found != source:
            return "it was made from other states or another loss mask"
        if full and _read_entries(descriptor, layout, hash_only=True) != (crcs, checksum):
            return "changed since it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except StateFileError as error:
        return str(error)
    finally:
        os.close(descriptor)
    return None


def _write_entries(
    descriptor: int, layout: Layout, state: Path, header: StateHeader, state_checksum: str, mask: numpy.ndarray
) -> list[int]:
    """Write everything before the seal; return the CRC-32 of each entry's content as it should be."""
    crcs = [0] * len(layout.entries)
    done = [0] * len(layout.entries)

    def put(number: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        crcs[number] = zlib.crc32(view, crcs[number])
        _write_at(descriptor, view, layout.entries[number].data_offset + done[number])
        done[number] += len(view)

    for number, entry in enumerate(layout.entries):
        if content := layout.constants.get(entry.name.removeprefix("archive/")):
            put(number, content)
    digest = xxhash.xxh3_128()
    with open(state, "rb", buffering=0) as file:
        shape = (layout.num_slots, layout.slot_row_bytes)
        rows = max(1, BLOCK_BYTES // header.bytes_per_token)
        for block in _blocks(file.fileno(), HEADER_BYTES, header.states_bytes, rows * header.bytes_per_token):
            digest.update(block)
            slots = block.reshape(-1, *shape)
            for slot in range(layout.num_slots):
                put(layout.ids + 1 + slot, numpy.ascontiguousarray(slots[:, slot]))
        for block in _blocks(file.fileno(), HEADER_BYTES + header.states_bytes, 8 * layout.num_tokens, BLOCK_BYTES):
            digest.update(block)
            put(layout.ids, block)
    if digest.hexdigest() != state_checksum:
        raise StateFileError("checksum_mismatch", f"{state} is not what its manifest recorded")
    put(layout.mask, mask.astype("<i8"))
    for number, entry in enumerate(layout.entries):
        _write_at(descriptor, entry.local(crcs[number]), entry.offset)
    return crcs


def _read_entries(descriptor: int, layout: Layout, hash_only: bool = False) -> tuple[list[int], str]:
    """CRC-32 of each entry's content and XXH3-128 of all bytes before the seal, as they are on the disk.

    ``hash_only``: the CRCs are taken from the headers, as the XXH3 covers headers and contents.
    """
    digest, crcs = xxhash.xxh3_128(), []
    for entry in layout.entries:
        raw = os.pread(descriptor, entry.data_offset - entry.offset, entry.offset)
        digest.update(raw)
        (stated,) = struct.unpack_from("<I", raw, 14)
        crc = 0
        for block in _blocks(descriptor, entry.data_offset, entry.size, BLOCK_BYTES):
            digest.update(block)
            crc = stated if hash_only else zlib.crc32(block, crc)
        if raw != entry.local(crc):
            crc = -1  # of no content: whoever compares finds a difference
        crcs.append(crc)
    return crcs, digest.hexdigest()


def _claimed(layout: Layout, tail: bytes) -> tuple[list[int], str, str] | None:
    """CRCs, source and checksum from a tail, or None when it is not byte for byte the one that they give."""
    start = layout.seal.data_offset - layout.seal.offset
    try:
        content = json.loads(tail[start : start + layout.seal.size])
        source, checksum = content["source"], content["checksum"]
        crcs, position = [], start + layout.seal.size
        for entry in layout.entries:
            crcs.append(struct.unpack_from("<I", tail, position + 16)[0])
            position += len(entry.central(0))
        return (crcs, source, checksum) if layout.tail(crcs, source, checksum) == tail else None
    except (ValueError, KeyError, TypeError, struct.error):
        return None


def _blocks(descriptor: int, offset: int, size: int, block_bytes: int) -> Iterator[numpy.ndarray]:
    """The bytes from ``offset`` on, block by block, in one buffer. Raises StateFileError where the file ends."""
    buffer = numpy.empty(min(block_bytes, size), numpy.uint8)
    position = 0
    while position < size:
        block = buffer[: min(block_bytes, size - position)]
        done = 0
        while done < block.size:
            count = os.preadv(descriptor, [memoryview(block)[done:]], offset + position + done)
            if count == 0:
                raise StateFileError("truncated", "the file became shorter while it was read")
            done += count
        yield block
        position += block.size


def _write_at(descriptor: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def _seal(source: str, checksum: str) -> bytes:
    return json.dumps({"checksum": checksum, "source": source}).encode()


def _end(entries: int, size: int, offset: int) -> bytes:
    """The end of the archive, whose directory of ``size`` bytes begins at ``offset``."""
    end = b""
    if offset >= FULL_32:
        end = END64 + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, entries, entries, size, offset)
        end += LOCATOR64 + struct.pack("<IQI", 0, offset + size, 1)
    return end + END + struct.pack("<4H2IH", 0, 0, entries, entries, size, min(offset, FULL_32), 0)


class _Storage:
    """Stands for the bytes of a tensor, which lie in another entry of the archive."""

    def __init__(self, kind: str, number: int, num_values: int) -> None:
        self.kind, self.number, self.num_values = kind, number, num_values


class _Tensor:
    """Pickles as a tensor does."""

    def __init__(self, kind: str, number: int, shape: tuple[int, ...]) -> None:
        self.kind, self.number, self.shape = kind, number, shape

    def __reduce__(self) -> tuple[Any, ...]:
        import torch

        storage = _Storage(self.kind, self.number, math.prod(self.shape))
        strides = tuple([*self.shape[1:], 1])
        return torch._utils._rebuild_tensor_v2, (storage, 0, self.shape, strides, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        import torch

        if isinstance(value, _Storage):
            return "storage", getattr(torch, value.kind), str(value.number), "cpu", value.num_values
        return None


def _tensors(num_tokens: int, num_slots: int, hidden_size: int, kind: str) -> bytes:
    """``data.pkl``, as ``torch.save`` writes it for the dict of one sample."""
    sample = {
        "input_ids": _Tensor("LongStorage", 0, (num_tokens,)),
        "hidden_states": [_Tensor(kind, 1 + slot, (num_tokens, hidden_size)) for slot in range(num_slots)],
        "loss_mask": _Tensor("LongStorage", 1 + num_slots, (num_tokens,)),
    }
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(sample)
    return buffer.getvalue()
