"""Reading files in full: checksum, finite values, the right token ids; memory does not grow with the file.

A state file is read once, in blocks that stay in the processor's cache while they are hashed and looked at.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy
import xxhash

from hidden_states.store.state_file import HEADER_BYTES, StateHeader, sample_key

BLOCK_BYTES = 1 << 20
"""Bytes read at a time; more than a processor's second-level cache makes hashing and looking slower."""

LARGEST_FINITE = {
    "BF16": (numpy.int16, numpy.uint16, 0x7F7F, 0xFF7F),
    "F16": (numpy.int16, numpy.uint16, 0x7BFF, 0xFBFF),
    "F32": (numpy.int32, numpy.uint32, 0x7F7FFFFF, 0xFF7FFFFF),
    "F8_E4M3": (numpy.int8, numpy.uint8, 0x7E, 0xFE),
}
"""Signed and unsigned view of a dtype and the largest finite bit pattern of each: above them lie only infinities and
NaN. The largest signed view sees positive numbers, the largest unsigned one negative numbers."""


class StateFileError(Exception):
    """A state file is not what it should be.

    ``reason`` is one of ``missing``, ``unreadable``, ``foreign``, ``truncated``, ``too_long``, ``header_damaged``,
    ``wrong_layers``, ``wrong_shape``, ``checksum_mismatch``, ``wrong_token_ids``, ``not_finite``, ``wrong_scale``,
    ``zero_row``; ``detail`` says what was found.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class CheckedFile:
    """A state file that exists: its path, what its header says, and which file of the disk it is."""

    path: Path
    header: StateHeader
    inode: int
    mtime_ns: int

    @property
    def published(self) -> str:
        """``inode:mtime_ns``, as the manifest has it; any rewriting of the file changes it."""
        return f"{self.inode}:{self.mtime_ns}"


def file_checksum(path: Path) -> str:
    """XXH3-128 of a whole file, in hex."""
    digest, buffer = xxhash.xxh3_128(), bytearray(BLOCK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def read_header(path: Path, expected: StateHeader | None) -> CheckedFile:
    """Check size and header of a state file; cheap, reads 1024 bytes. Raises StateFileError.

    ``expected`` says what the header must be; its checksum is not compared. None accepts any canonical header.
    """
    descriptor, status = _open(path)
    try:
        return _check_header(path, descriptor, status, expected)
    except OSError as error:
        raise StateFileError("unreadable", f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def check_state_file(path: Path, expected: StateHeader | None, token_ids: numpy.ndarray | None = None) -> CheckedFile:
    """Read a state file in full and check everything about it.

    ``expected``: what the header must say, but for the checksum. ``token_ids``: integer [num_tokens], the ids that
    were sent; without them the ids in the file must still be those of its key. Raises StateFileError with the first
    fault, in this order: header and size, checksum against the header, token ids, finite values, scales that are finite
    and above zero, no state of zeros.
    """
    descriptor, status = _open(path)
    try:
        checked = _check_header(path, descriptor, status, expected)
        _check_content(descriptor, checked.header, token_ids)
    except OSError as error:
        raise StateFileError("unreadable", f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return checked


def _open(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; a link, pipe or folder with its name is foreign, and is not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StateFileError("missing", f"{path} does not exist") from None
    except OSError as error:
        reason = "foreign" if error.errno in (errno.ELOOP, errno.ENXIO) else "unreadable"
        raise StateFileError(reason, f"{path}: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise StateFileError("foreign", f"{path} is not a regular file")
    return descriptor, status


def _check_header(path: Path, descriptor: int, status: os.stat_result, expected: StateHeader | None) -> CheckedFile:
    raw = os.pread(descriptor, HEADER_BYTES, 0)
    if len(raw) < HEADER_BYTES:
        raise StateFileError("truncated", f"{len(raw)} bytes, too short for a header")
    try:
        header = StateHeader.from_bytes(raw)
    except ValueError as error:
        raise StateFileError("header_damaged", str(error)) from None
    if expected is not None:
        _compare_headers(header, expected)
    if status.st_size != header.file_bytes:
        reason = "truncated" if status.st_size < header.file_bytes else "too_long"
        raise StateFileError(reason, f"{status.st_size:,} bytes instead of {header.file_bytes:,}")
    return CheckedFile(path, header, status.st_ino, status.st_mtime_ns)


def _compare_headers(found: StateHeader, expected: StateHeader) -> None:
    for reason, fields in (
        ("foreign", ("fingerprint", "key")),
        ("wrong_layers", ("layers", "final")),
        ("wrong_shape", ("num_tokens", "num_slots", "hidden_size", "dtype")),
    ):
        for field in fields:
            has, wants = getattr(found, field), getattr(expected, field)
            if has != wants:
                raise StateFileError(reason, f"{field} is {has} instead of {wants}")


def _check_content(descriptor: int, header: StateHeader, token_ids: numpy.ndarray | None) -> None:
    digest = xxhash.xxh3_128()
    not_finite, zero_row = _stream_states(descriptor, header, digest)
    stored = os.pread(descriptor, 8 * header.num_tokens, HEADER_BYTES + header.states_bytes)
    digest.update(stored)
    scales = os.pread(descriptor, header.file_bytes - header.scales_offset, header.scales_offset)
    digest.update(scales)
    if digest.hexdigest() != header.checksum:
        raise StateFileError("checksum_mismatch", f"content has {digest.hexdigest()}, header says {header.checksum}")
    if sample_key(stored) != header.key:
        raise StateFileError("wrong_token_ids", f"the ids in the file are not those of key {header.key}")
    if token_ids is not None:
        _compare_ids(numpy.frombuffer(stored, "<i8"), token_ids)
    if not_finite is not None:
        raise StateFileError("not_finite", not_finite)
    _check_scales(numpy.frombuffer(scales, "<f4"))
    if zero_row is not None:
        raise StateFileError("zero_row", zero_row)


def _check_scales(scales: numpy.ndarray) -> None:
    """float32 [num_tokens], or none."""
    wrong = numpy.flatnonzero(~(numpy.isfinite(scales) & (scales > 0)))
    if wrong.size:
        row = int(wrong[0])
        # What is infinite on the device has a scale that is.
        reason = "wrong_scale" if numpy.isfinite(scales[row]) else "not_finite"
        raise StateFileError(reason, f"row {row} has the scale {scales[row]}")


def _compare_ids(found: numpy.ndarray, wanted: numpy.ndarray) -> None:
    if found.shape != wanted.shape:
        raise StateFileError("wrong_token_ids", f"{found.size} ids instead of {wanted.size}")
    different = numpy.flatnonzero(found != wanted)
    if different.size:
        position = int(different[0])
        raise StateFileError(
            "wrong_token_ids", f"id {found[position]} instead of {wanted[position]} at position {position}"
        )


def _stream_states(descriptor: int, header: StateHeader, digest: "xxhash.xxh3_128") -> tuple[str | None, str | None]:
    """Hash ``hidden_states`` block by block; return where the first value that is not finite lies, and where the first
    row that is all zeros, or None."""
    signed, unsigned, largest_signed, largest_unsigned = LARGEST_FINITE[header.dtype]
    buffer = numpy.empty(min(BLOCK_BYTES, header.states_bytes), numpy.uint8)
    found, zeros, position = None, None, 0
    while position < header.states_bytes:
        block = buffer[: min(BLOCK_BYTES, header.states_bytes - position)]
        _fill(descriptor, block, HEADER_BYTES + position)
        digest.update(block)
        if found is None and (
            block.view(signed).max() > largest_signed or block.view(unsigned).max() > largest_unsigned
        ):
            found = _locate(block.view(unsigned), unsigned(largest_signed), position, header)
        zeros = zeros or _find_zero_row(descriptor, block.view(unsigned), position, header)
        position += block.size
    return found, zeros


def _find_zero_row(descriptor: int, values: numpy.ndarray, position: int, header: StateHeader) -> str | None:
    """The first state of zeros only that begins in ``values``, a block at byte ``position``: no model gives one, but a
    buffer that was never written does. One value of each state is looked at, and all of those where it is zero."""
    width = header.hidden_size
    sign_off = values.dtype.type(numpy.iinfo(values.dtype).max >> 1)
    first = position // values.itemsize
    begin = -first % width
    for index in numpy.flatnonzero((values[begin::width] & sign_off) == 0):
        start = first + begin + int(index) * width
        state = os.pread(descriptor, width * values.itemsize, HEADER_BYTES + start * values.itemsize)
        if not (numpy.frombuffer(state, values.dtype) & sign_off).any():
            return f"{_place(start, header)} is all zeros"
    return None


def _fill(descriptor: int, block: numpy.ndarray, offset: int) -> None:
    view, done = memoryview(block), 0
    while done < block.size:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise StateFileError("truncated", "the file became shorter while it was read")
        done += count


def _locate(values: numpy.ndarray, largest: numpy.unsignedinteger, position: int, header: StateHeader) -> str:
    """Row, slot and column of the first value that is not finite in ``values``, a block at byte ``position``."""
    sign_off = values.dtype.type(numpy.iinfo(values.dtype).max >> 1)
    first = int(numpy.flatnonzero((values & sign_off) > largest)[0]) + position // values.itemsize
    if header.is_scaled:
        row = first // (header.hidden_size * header.num_slots)
        return f"row {row} is not a number; in float8 one such value makes the whole row so"
    return f"{_place(first, header)}, column {first % header.hidden_size} is infinite or not a number"


def _place(index: int, header: StateHeader) -> str:
    """Row and slot of the value number ``index``."""
    row, slot = divmod(index // header.hidden_size, header.num_slots)
    name = "the final state" if slot == len(header.layers) else f"layer {header.layers[slot]}"
    return f"row {row}, slot {slot} ({name})"
