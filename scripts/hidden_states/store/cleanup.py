"""Removing states: those of one chunk, to have them computed anew, and those that nothing refers to."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hidden_states.layout import Results
from hidden_states.store.manifest import read_manifest
from hidden_states.store.store import Store, StoredFile, stale_copies, stored_files
from hidden_states.store.tokens import read_tokens


@dataclass(frozen=True)
class Evicted:
    """``chunks``: those whose manifests named an evicted state, and were removed with it."""

    count: int
    num_bytes: int
    chunks: list[str]


def evict_chunk(results: Results, chunk: str, store: Store) -> Evicted:
    """Remove the states of a chunk, and every manifest that names one of them, so that ``all`` makes both anew.

    A state that occurs in another chunk too is gone from both: one store, one state. Raises UserError when the token
    file or a manifest cannot be read.
    """
    keys = set(read_tokens(results.tokens(chunk), ["key"]).column("key").to_pylist())
    chunks = []
    for name in _chunks_with_manifest(results):
        if name == chunk or keys & {key for of, key in _named_by(results, [name]) if of == store.fingerprint}:
            results.manifest(name).unlink()
            chunks.append(name)
    count, num_bytes = store.evict(sorted(keys))
    return Evicted(count, num_bytes, chunks)


@dataclass(frozen=True)
class Unreferenced:
    """What nothing refers to. ``chunks``: folders left over from a run with more chunks."""

    states: list[StoredFile]
    copies: list[Path]
    chunks: list[Path]

    @property
    def num_bytes(self) -> int:
        return sum(state.size for state in self.states) + sum(copy.stat().st_size for copy in self.copies)

    @property
    def linked_bytes(self) -> int:
        """Bytes of states that a hard link, such as a packaged dataset, keeps on the disk."""
        return sum(state.size for state in self.states if state.num_links > 1)

    def remove(self) -> None:
        for chunk in self.chunks:
            shutil.rmtree(chunk)
        for path in [state.path for state in self.states] + self.copies:
            path.unlink(missing_ok=True)


def find_unreferenced(results: Results, fingerprint: str) -> Unreferenced:
    """States that no manifest names and that no token file would find again under ``fingerprint``.

    Manifests count only for chunks that still have a token file. Foreign files are none of ours and stay. Raises
    UserError when a manifest or token file cannot be read: then nobody knows what it refers to.
    """
    manifests = _chunks_with_manifest(results)
    leftover = [name for name in manifests if not results.tokens(name).exists()]
    named = _named_by(results, set(manifests) - set(leftover))
    named |= {(fingerprint, key) for path in _token_files(results) for key in _keys(path)}
    states = [file for file in stored_files(results) if not file.foreign and (file.fingerprint, file.key) not in named]
    return Unreferenced(states, sorted(stale_copies(results)), [results.chunks / name for name in leftover])


def _named_by(results: Results, chunks: Iterable[str]) -> set[tuple[str, str]]:
    """Fingerprint and key of every sample in the manifests of ``chunks``."""
    named: set[tuple[str, str]] = set()
    for chunk in chunks:
        columns = read_manifest(results.manifest(chunk), ["fingerprint", "key"]).to_pydict()
        named.update(zip(columns["fingerprint"], columns["key"], strict=True))
    return named


def _chunks_with_manifest(results: Results) -> list[str]:
    return sorted(path.parent.name for path in results.chunks.glob("*/manifest.parquet"))


def _token_files(results: Results) -> list[Path]:
    return sorted(path for path in results.tokens("x").parent.glob("*.parquet") if path != results.rejected)


def _keys(path: Path) -> list[str]:
    return read_tokens(path, ["key"]).column("key").to_pylist()
