"""Which rows came before: told by a digest of all their tokens and masks.

The digests are in a file that is mapped into memory: 16 bytes each in a table at most half full, so 32 to 64 MB for a
million rows, which the system may write out and reads again; the process itself holds nothing that grows.
"""

import hashlib
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy

DIGEST_BYTES = 16
FIRST_SLOTS = 1 << 16
EMPTY = bytes(DIGEST_BYTES)


def content_digest(samples: Iterable[tuple[numpy.ndarray, numpy.ndarray]]) -> bytes:
    """Of the ids and masks, both [num_tokens], of all samples of a row, in order."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for ids, mask in samples:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.astype("<i8").tobytes())
        digest.update(mask.astype("i1").tobytes())
    return digest.digest()


class DigestSet:
    """A set of digests in a file at ``path``, which is made anew."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self._table, self._slots = self._new_table(FIRST_SLOTS)

    def add(self, digest: bytes) -> bool:
        """Whether the digest is new."""
        if 2 * self._count >= self._slots:
            self._grow()
        begin = self._find(self._table, self._slots, digest)
        if self._table[begin : begin + DIGEST_BYTES] != EMPTY:
            return False
        self._table[begin : begin + DIGEST_BYTES] = digest
        self._count += 1
        return True

    def close(self) -> None:
        self._table.close()

    def _new_table(self, slots: int) -> tuple[mmap.mmap, int]:
        """A table of empty slots; the file of the one before lives on while it is mapped."""
        self._path.unlink(missing_ok=True)
        with open(self._path, "xb+") as file:
            file.truncate(slots * DIGEST_BYTES)
            return mmap.mmap(file.fileno(), slots * DIGEST_BYTES), slots

    @staticmethod
    def _find(table: mmap.mmap, slots: int, digest: bytes) -> int:
        """Where the digest is, or would be."""
        slot = int.from_bytes(digest[:8], "little") % slots
        while table[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] not in (EMPTY, digest):
            slot = (slot + 1) % slots
        return slot * DIGEST_BYTES

    def _grow(self) -> None:
        table, slots = self._new_table(2 * self._slots)
        for begin in range(0, len(self._table), DIGEST_BYTES):
            if (digest := self._table[begin : begin + DIGEST_BYTES]) != EMPTY:
                place = self._find(table, slots, digest)
                table[place : place + DIGEST_BYTES] = digest
        self._table.close()
        self._table, self._slots = table, slots
