"""Every state file that a manifest names, read in full; then whatever else lies in the store."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.pool import parallel
from hidden_states.progress import Progress
from hidden_states.store.checksums import CheckedFile, StateFileError, check_state_file, read_header
from hidden_states.store.store import HASH_PATTERN, SUFFIX, Store, StoredFile, stale_copies, stored_files
from hidden_states.verification.findings import Findings
from hidden_states.verification.rows import (
    Kind,
    ManifestError,
    Row,
    check_rows,
    compare_with_state,
    manifest_rows,
    state_path,
    token_rows,
)
from hidden_states.verification.structure import ChunkRecord, new_record


@dataclass
class Seen:
    """States met so far, so that one that several chunks share is read once.

    ``read``: those read in full, ``wanted``: keys of samples without a state; both by fingerprint, keys as 16 bytes.
    """

    kind: Kind
    read: dict[str, set[bytes]] = field(default_factory=dict)
    wanted: set[bytes] = field(default_factory=set)

    def first(self, row: Row) -> bool:
        """Whether ``row`` is the first with its state; it counts as read from now on."""
        keys, key = self.read.setdefault(row.fingerprint, set()), bytes.fromhex(row.key)
        if key in keys:
            return False
        keys.add(key)
        return True

    def has_read(self, path: Path) -> bool:
        """Whether the state that belongs at ``path`` was read, whatever lies there."""
        key, fingerprint = path.name.removesuffix(SUFFIX), path.parents[1].name
        if not (HASH_PATTERN.fullmatch(key) and path.parent.name == key[:2]):
            return False
        return bytes.fromhex(key) in self.read.get(fingerprint, ())


def check_chunk(
    results: Results, chunk: str, tokens_good: bool, findings: Findings, seen: Seen, progress: Progress
) -> ChunkRecord | None:
    """Check one chunk's manifest and read its states; return its record, or None when the manifest is not usable."""
    try:
        record = new_record(results, chunk)
        rows = check_rows(manifest_rows(results, chunk), token_rows(results, chunk) if tokens_good else None)
        tasks = ((row, seen.first(row)) for row in _good(rows, record, seen))
        for (row, _), problem in parallel(lambda task: _problem(results, task[0], task[1], seen.kind), tasks):
            if problem is not None:
                findings.state(chunk, row.key, state_path(results, row), problem)
            progress.add(num_bytes=row.bytes)
        return record
    except (UserError, ManifestError) as error:
        kind = "damaged manifests" if results.manifest(chunk).exists() else "chunks without a manifest"
        findings.chunk(kind, chunk, results.manifest(chunk), str(error).split(";")[0])
        return None


def check_without_manifest(results: Results, chunk: str, fingerprint: str, findings: Findings, seen: Seen) -> None:
    """Read the states there are of a chunk that has no usable manifest: extract would take them from the store."""
    store = Store(results, fingerprint)
    keys = sorted({key for _, key, _ in token_rows(results, chunk)})
    seen.wanted.update(bytes.fromhex(key) for key in keys)
    paths = ((key, store.path(key)) for key in keys if bytes.fromhex(key) not in seen.read.get(fingerprint, ()))
    for (key, path), problem in parallel(lambda item: _content_problem(item[1]), paths):
        seen.read.setdefault(fingerprint, set()).add(bytes.fromhex(key))
        if problem is not None and not problem.startswith("missing"):
            findings.state(chunk, key, path, problem)


def ticket_other_chunks(results: Results, chunks: list[str], findings: Findings) -> None:
    """Ticket a damaged state in every chunk that needs it: each has to write its manifest again."""
    if not findings.keys:
        return
    for chunk in chunks:
        try:
            for row in manifest_rows(results, chunk):
                if row.key in findings.keys:
                    findings.chunk_tickets.setdefault(chunk, {})[row.key] = findings.keys[row.key]
        except UserError:
            continue  # this manifest has its ticket already


def check_rest_of_store(results: Results, findings: Findings, seen: Seen) -> None:
    """Everything below ``states/`` that no manifest names: a foreign or broken file is wrong, an orphan is noted."""
    orphans = orphan_bytes = 0
    others = (file for file in stored_files(results) if not seen.has_read(file.path))
    for file, problem in parallel(_stored_problem, others):
        if problem is not None:
            findings.store_file(str(file.path.relative_to(results.root)), file.path, problem)
        elif bytes.fromhex(str(file.key)) not in seen.wanted:
            orphans, orphan_bytes = orphans + 1, orphan_bytes + file.size
    if orphans:
        findings.notes.append(
            f"{orphans:,} states belong to no sample of this run: {orphan_bytes:,} bytes; `hidden-states prune` lists "
            "them and with --yes removes them"
        )
    if copies := list(stale_copies(results)):
        size = sum(copy.stat().st_size for copy in copies)
        findings.notes.append(f"{len(copies)} copies that a killed process left: {size:,} bytes; `hidden-states prune`")


def _good(rows: Iterator[Row], record: ChunkRecord, seen: Seen) -> Iterator[Row]:
    for row in rows:
        record.add(row)
        if row.ok:
            yield row
        else:
            seen.wanted.add(bytes.fromhex(row.key))


def _problem(results: Results, row: Row, in_full: bool, kind: Kind) -> str | None:
    path = state_path(results, row)
    try:
        state: CheckedFile = check_state_file(path, None) if in_full else read_header(path, None)
        compare_with_state(row, state, kind)
    except StateFileError as error:
        return _short(path, error)
    return None


def _content_problem(path: Path) -> str | None:
    try:
        header = check_state_file(path, None).header
    except StateFileError as error:
        return _short(path, error)
    place = (path.parents[1].name, path.name.split(".")[0])
    return None if (header.fingerprint, header.key) == place else f"foreign: it is the state of {header.key}"


def _stored_problem(file: StoredFile) -> str | None:
    return "foreign: no file of the store has such a name" if file.foreign else _content_problem(file.path)


def _short(path: Path, error: StateFileError) -> str:
    """The error without the path, which is named beside it."""
    return str(error).replace(f"{path} ", "the file ").replace(f"{path}: ", "")
