"""``verify``: everything of a run on the disk, read in full and compared with one another. Repairs nothing.

| what | against what |
|---|---|
| token files | checksums of the summary; ids against keys |
| manifests | token files; one fingerprint, the configuration's |
| state files, read in full | header, checksum, ids, finite values; the manifest's checksum, inode and time |
| ``qa/{chunk}.json`` | the manifest, and its checksum |
| datasets | their own checksums; manifests row by row; inodes of the store, or copies in full |
| its own tickets | they can be read |
| whatever else is in the store | nothing may be foreign or broken; orphans are counted |

What is damaged goes into the tickets that ``all`` repairs it by.
"""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results, chunk_name
from hidden_states.progress import Progress
from hidden_states.store.tickets import DATASET, read_ticket
from hidden_states.verification.findings import Findings
from hidden_states.verification.package import check_packages
from hidden_states.verification.rows import Kind
from hidden_states.verification.states import (
    Seen,
    check_chunk,
    check_rest_of_store,
    check_without_manifest,
    ticket_other_chunks,
)
from hidden_states.verification.structure import ChunkRecord
from hidden_states.verification.tokens import check_tokens

log = logging.getLogger(__name__)

SERVER_RECORDS = "damaged or missing server records"


@dataclass
class Verified:
    """What was found, and what there is: good states and their bytes, failed samples by the chunks that have them."""

    findings: Findings = field(default_factory=Findings)
    states: int = 0
    bytes: int = 0
    failed: dict[str, int] = field(default_factory=dict)


def verify(settings: dict[str, Any], results: Results, specification: Any | None) -> Verified:
    """Check everything and write tickets for what is damaged.

    ``specification``: fingerprint, layers and final of the current configuration; None when they are not known here,
    then the chunks need only agree with one another. Raises UserError when there is nothing to verify yet.
    """
    chunks = [chunk_name(index) for index in range(settings["extraction"]["chunks"])]
    if not any(results.manifest(chunk).exists() for chunk in chunks):
        raise UserError(f"{results.root} holds no extracted chunk: there is nothing to verify yet.")
    verified = Verified()
    seen = Seen(Kind(specification.layers, specification.final) if specification else Kind())
    findings = verified.findings
    tokens_good = check_tokens(results, chunks, findings)
    records = {}
    progress = Progress("verifying states", _num_samples(results))
    for chunk in chunks:
        if record := check_chunk(results, chunk, chunk in tokens_good, findings, seen, progress):
            records[chunk] = record
            verified.states, verified.bytes = verified.states + record.ok, verified.bytes + record.bytes
            if record.samples > record.ok:
                verified.failed[chunk] = record.samples - record.ok
    progress.finish()
    known = _check_fingerprints(results, records, specification and specification.fingerprint, findings)
    for chunk in chunks:
        if chunk not in records and chunk in tokens_good and known is not None:
            check_without_manifest(results, chunk, known, findings, seen)
    ticket_other_chunks(results, chunks, findings)
    check_rest_of_store(results, findings, seen)
    _check_records(results, records, findings)
    manifests_good = len(records) == len(chunks) and len(tokens_good) == len(chunks)
    check_packages(settings, results, len(chunks), manifests_good, findings)
    _check_tickets(results, chunks, findings)
    _note_left_over(results, set(chunks), findings)
    findings.write_tickets(results)
    return verified


def _check_fingerprints(
    results: Results, records: dict[str, ChunkRecord], current: str | None, findings: Findings
) -> str | None:
    """All chunks, the server's record and the configuration have one fingerprint; return it."""
    made = {chunk: record.fingerprint for chunk, record in records.items() if record.fingerprint}
    wanted = current or next(iter(made.values()), None)
    for chunk, fingerprint in made.items():
        if fingerprint != wanted:
            what = f"fingerprint {fingerprint}, but the configuration, on this machine, gives {wanted}"
            if current is None:
                what = f"fingerprint {fingerprint}, but other chunks have {wanted}"
            findings.chunk("chunks of another configuration", chunk, results.manifest(chunk), what)
    try:
        ready = json.loads(results.ready.read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        findings.step_again(SERVER_RECORDS, results.ready, f"cannot be read ({error})")
        return wanted
    if wanted is not None and ready != wanted:
        findings.step_again(SERVER_RECORDS, results.ready, f"fingerprint {ready} instead of {wanted}")
    return wanted


def _check_records(results: Results, records: dict[str, ChunkRecord], findings: Findings) -> None:
    """The gate's record of every chunk must be what its manifest gives, and about this very file."""
    for chunk, record in records.items():
        path, expected = results.chunk_qa(chunk), record.content()
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            findings.chunk("damaged or missing qa records", chunk, path, f"cannot be read ({error})")
            continue
        if found == expected:
            continue
        if isinstance(found, dict) and {**found, "manifest": record.manifest} == expected:
            findings.chunk("damaged manifests", chunk, results.manifest(chunk), "changed since it was checked")
        else:
            findings.chunk("damaged or missing qa records", chunk, path, "it does not fit the manifest")


def _check_tickets(results: Results, chunks: list[str], findings: Findings) -> None:
    """Extract and package stop at a ticket that they cannot read, until it is written anew."""
    for name in (*chunks, DATASET):
        try:
            read_ticket(results, name)
        except UserError as error:
            path, problem = results.ticket(name), str(error).split(";")[0]
            if name == DATASET:
                findings.dataset_file(str(path.relative_to(results.root)), path, problem)
            else:
                findings.chunk("damaged tickets", name, path, problem)


def _note_left_over(results: Results, chunks: set[str], findings: Findings) -> None:
    folders = [path for path in results.chunks.iterdir() if path.name not in chunks]
    token_files = [
        path
        for path in results.summary.parent.glob("*.parquet")
        if path.stem not in chunks and path.name != results.rejected.name
    ]
    if folders or token_files:
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()] + token_files
        findings.notes.append(
            f"left over from a run with more chunks: {len(folders)} folders in {results.chunks}, {len(token_files)} "
            f"token files, {sum(path.stat().st_size for path in files):,} bytes"
        )


def _num_samples(results: Results) -> int:
    try:
        return int(json.loads(results.summary.read_text(encoding="utf-8"))["samples"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
