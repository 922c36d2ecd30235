"""Extract one chunk: from its token file to its manifest."""

import asyncio
import errno
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hidden_states.errors import UserError
from hidden_states.extraction import dump
from hidden_states.extraction.engine import KILLS_SERVER, Engine
from hidden_states.extraction.faults import DiskFull
from hidden_states.extraction.journal import Journal, read_journal
from hidden_states.extraction.limits import Limits
from hidden_states.extraction.plan import ChunkPlan, plan_chunk
from hidden_states.extraction.watch import Server
from hidden_states.layout import Results
from hidden_states.progress import Progress
from hidden_states.run_lock import RUN_ID
from hidden_states.store.checksums import CheckedFile
from hidden_states.store.disk_plan import DUMPED_PER_REQUEST, free_words
from hidden_states.store.manifest import reason_code, write_manifest
from hidden_states.store.state_file import StateHeader
from hidden_states.store.store import Store

log = logging.getLogger(__name__)

SHOWN_FAILURES = 5

Lease = Callable[[int], AbstractContextManager[Server]]
"""Gives a running server that takes prompts of up to this many tokens, for as long as the block lasts."""


def extract_chunk(
    settings: dict[str, Any],
    results: Results,
    chunk: str,
    specification: Any,
    lease: Lease,
    check_space: Callable[[int, int], None],
    limits: Limits | None = None,
) -> None:
    """Compute what the store lacks of ``chunk`` and write its manifest.

    ``specification``: fingerprint, layers, final, dtype ("BF16") and hidden_size of the states. ``lease`` is used
    only when something is missing; before it, ``check_space`` gets the bytes of the states that will be written and of
    those that may lie in the dump directory at one time. Safe to kill at any moment: what is in the store stays, and
    the next run goes on from there.

    Raises UserError when too many samples failed, a sample is too long for the server, the server does not come up
    or keeps dying, there is no space, or the token file is damaged. Then no manifest is written.
    """
    store = Store(results, specification.fingerprint)
    store.remove_stale_copies()
    plan = plan_chunk(results, chunk, store, specification)
    run_id = os.environ.get(RUN_ID, "")
    plan.given_up = _killers(results, chunk, plan, run_id)
    missing = plan.missing
    log.info("chunk %s: %d of %d states are in the store", chunk, len(plan.stored), len(plan.expected))
    states, failures = dict(plan.stored), dict(plan.given_up)
    with _explained_when_full(results, chunk, plan, store):
        with Journal(results.journal(chunk), run_id) as journal:
            if missing:
                check_space(*_bytes_needed(missing.values(), settings["extraction"]["concurrency"]))
                with lease(max(header.num_tokens for header in missing.values())) as server:
                    engine = _compute(settings, chunk, plan, store, journal, server, limits or Limits())
                states |= engine.states
                failures |= engine.failures
        _refuse_too_many_failures(settings, chunk, plan, failures)
        write_manifest(results.manifest(chunk), _manifest_rows(results, chunk, plan, states, failures))
    if failures:
        log.warning(
            "chunk %s: %s; they are left out of the dataset. To try them again: "
            "snakemake --cores 8 all -R results/chunks/%s/manifest.parquet",
            chunk,
            _describe(plan, failures),
            chunk,
        )


def _killers(results: Results, chunk: str, plan: ChunkPlan, run_id: str) -> dict[str, str]:
    """The missing samples that killed the server earlier in this run, with the reason: when Snakemake tries the job
    again, they would cost several starts of the server for the same result."""
    if not run_id:
        return {}
    journal, _ = read_journal(results.journal(chunk))
    lines = {key: line for key, line in journal.items() if key in plan.missing and line.get("run_id") == run_id}
    return {key: line["reason"] for key, line in lines.items() if str(line["reason"]).startswith(KILLS_SERVER)}


def _bytes_needed(missing: Collection[StateHeader], concurrency: int) -> tuple[int, int]:
    """Of all states, and of those in the dump directory at one time."""
    sizes = [header.file_bytes for header in missing]
    return sum(sizes), min(sum(sizes), DUMPED_PER_REQUEST * concurrency * max(sizes))


def _compute(
    settings: dict[str, Any],
    chunk: str,
    plan: ChunkPlan,
    store: Store,
    journal: Journal,
    server: Server,
    limits: Limits,
) -> Engine:
    missing = plan.missing
    _refuse_too_long(plan, server)
    tokens = sum(header.num_tokens for header in missing.values())
    progress = Progress(f"chunk {chunk}", len(missing), total_tokens=tokens)
    # Rids are new in each run: the server may still be busy with those of a client that was killed.
    rid_middle = f"{chunk}-{{key}}-{secrets.token_hex(4)}-"
    # The server is this client's alone: whatever lies there under its prefix is of a client that was killed.
    dump.sweep(server.dump, server.rid_prefix)
    start = time.monotonic()

    async def run() -> Engine:
        engine = Engine(server, store, journal, progress, settings["extraction"]["concurrency"], rid_middle, limits)
        await engine.run(plan.tasks())
        return engine

    try:
        engine = asyncio.run(run())
    finally:
        store.sync()
        dump.sweep(server.dump, server.rid_prefix)
    progress.finish()
    seconds = time.monotonic() - start
    done = [state.header for state in engine.states.values()]
    computed_tokens, computed_bytes = sum(h.num_tokens for h in done), sum(h.file_bytes for h in done)
    journal.run(
        samples=len(done),
        reused=len(plan.stored),
        failed=len(engine.failures),
        tokens=computed_tokens,
        bytes=computed_bytes,
        seconds=round(seconds, 3),
        tokens_per_second=round(computed_tokens / seconds, 1),
        bytes_per_second=round(computed_bytes / seconds),
        server_restarts=engine.restarts,
    )
    return engine


def _refuse_too_long(plan: ChunkPlan, server: Server) -> None:
    """The server takes prompts shorter than ``max_req_input_len``."""
    limit = server.max_req_input_len
    lengths = {key: header.num_tokens for key, header in plan.missing.items() if header.num_tokens >= limit}
    if lengths:
        samples = [f"{sample_id} ({lengths[key]:,} tokens)" for sample_id, key in plan.rows if key in lengths]
        raise UserError(
            f"{len(samples)} samples of {plan.tokens} are longer than the {limit - 1:,} tokens that the server takes: "
            f"{_some(samples)}. Lower conversations.max_tokens to {limit - 1}, or raise context_length or "
            "max_total_tokens in server.arguments."
        )


def _manifest_rows(
    results: Results,
    chunk: str,
    plan: ChunkPlan,
    states: dict[str, CheckedFile],
    failures: dict[str, str],
) -> list[dict[str, Any]]:
    journal, _ = read_journal(results.journal(chunk))
    rows = []
    for sample_id, key in plan.rows:
        header, state = plan.expected[key], states.get(key)
        rows.append(
            {
                "sample_id": sample_id,
                "key": key,
                "fingerprint": header.fingerprint,
                "status": "ok" if state else "failed",
                "reason": None if state else failures[key],
                "file": str(state.path.relative_to(results.root)) if state else None,
                "n_tokens": header.num_tokens,
                "slots": header.num_slots,
                "hidden_size": header.hidden_size,
                "dtype": header.dtype,
                "checksum": state.header.checksum if state else None,
                "bytes": header.file_bytes if state else 0,
                "seconds": journal.get(key, {}).get("seconds") if state else None,
                "published": state.published if state else None,
            }
        )
    return rows


def _refuse_too_many_failures(settings: dict[str, Any], chunk: str, plan: ChunkPlan, failures: dict[str, str]) -> None:
    failed = sum(key in failures for _, key in plan.rows)
    allowed = settings["extraction"]["max_failed"]
    if failed > allowed * len(plan.rows):
        raise UserError(
            f"chunk {chunk}: {_describe(plan, failures)}; config key extraction.max_failed = {allowed:g} allows "
            f"{int(allowed * len(plan.rows))} of {len(plan.rows)}. The other states of the chunk are in the store. "
            "When the cause is removed, run `snakemake --cores 8 all` again: only the failed ones are tried."
        )


def _describe(plan: ChunkPlan, failures: dict[str, str]) -> str:
    """For example ``3 samples failed: 2 refused, 1 not_finite; sample 17: refused: HTTP 400: …``."""
    failed = [(sample_id, failures[key]) for sample_id, key in plan.rows if key in failures]
    counts = Counter(reason_code(reason) for _, reason in failed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{len(failed)} samples failed: {kinds}; " + _some([f"sample {number}: {why}" for number, why in failed])


def _some(items: list[str]) -> str:
    more = len(items) - SHOWN_FAILURES
    return ", ".join(items[:SHOWN_FAILURES]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _explained_when_full(results: Results, chunk: str, plan: ChunkPlan, store: Store) -> Iterator[None]:
    """Turn "no space left" of the plug-in, the store or the records into a UserError with the bytes still needed."""
    try:
        yield
    except (DiskFull, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        left = [header for header in plan.missing.values() if not store.has(header)]
        raise UserError(
            f"chunk {chunk}: no space left ({error}). The {len(left)} samples still to be computed need "
            f"{sum(header.file_bytes for header in left):,} bytes; {free_words(results)}. Make room, then run "
            "`snakemake --cores 8 all` again: what was published stays."
        ) from None
