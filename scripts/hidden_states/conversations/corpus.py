"""The stage ``tokenize``: every row of the input becomes a sample of a chunk, or a rejected row with its reason."""

import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from hidden_states.checkpoint import Checkpoint
from hidden_states.conversations.batches import BatchTokenizer, Sample, batches
from hidden_states.conversations.duplicates import DigestSet, content_digest
from hidden_states.conversations.reasons import REASONS, Rejected
from hidden_states.conversations.rendering import TEMPLATE_DATE
from hidden_states.conversations.rows import Input, Row
from hidden_states.conversations.shapes import has_ids
from hidden_states.conversations.sources import find_sources
from hidden_states.conversations.token_files import (
    REJECTED_SCHEMA,
    Spool,
    chunk_batches,
    split_evenly,
    write_token_file,
)
from hidden_states.errors import UserError
from hidden_states.files import atomic_path, write_json
from hidden_states.layout import Results, chunk_name
from hidden_states.progress import Progress
from hidden_states.store.checksums import file_checksum
from hidden_states.store.disk_plan import DiskPlan, places, plan_disk, readable
from hidden_states.store.tokens import keep_copy
from hidden_states.vocabulary.end_of_turn import eos_ids
from hidden_states.vocabulary.fit import check_vocabulary
from hidden_states.vocabulary.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

EXAMPLES = 3
"""Rejected rows that are logged for each reason."""


def tokenize_corpus(
    settings: dict[str, Any], model_folder: Path, results: Results, specification: Any | None = None
) -> dict[str, Any]:
    """Write the token files of all chunks, ``rejected.parquet`` and, last, ``summary.json``; return the summary.

    ``specification``: of the server, for the disk plan; made from the settings where it is not given.

    Raises UserError for a file that cannot be read, a tokenizer or weights that do not fit, no chat template, no row
    that is usable, or more rejected rows than ``conversations.max_rejected``; then only ``rejected.parquet`` is
    written, and no token file.
    """
    options = settings["conversations"]
    inputs = [Input(source) for source in find_sources(options["files"])]
    tokenizer = load_tokenizer(model_folder, settings["model"]["trust_remote_code"])
    vocabulary = check_vocabulary(Checkpoint(model_folder), tokenizer)
    num_ids = vocabulary["config_ids"]
    if specification is None:
        from hidden_states.server.specification import build

        specification = build(settings, results)
    tokenize = BatchTokenizer(tokenizer, options, num_ids, eos_ids(model_folder, tokenizer))
    results.summary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spool.", dir=results.summary.parent) as folder:
        spool = Spool(Path(folder) / "accepted.arrow")
        seen = DigestSet(Path(folder) / "digests") if options["duplicates"] == "drop" else None
        counts = _read_all(inputs, tokenize, seen, spool, results)
        if seen is not None:
            seen.close()
        spool.close()
        _refuse_bad_corpus(counts, options["max_rejected"], results)
        results.summary.unlink(missing_ok=True)
        num_chunks = settings["extraction"]["chunks"]
        written = _write_chunks(results, spool, num_chunks)
        for index in range(num_chunks):
            keep_copy(results, chunk_name(index))
        plan = plan_disk(settings, results, specification, _keys_and_lengths(spool))
    written[results.rejected.name] = _record(results.rejected, sum(counts.reasons.values()))
    summary = {
        "rows_read": counts.rows,
        "accepted": counts.accepted,
        "rejected": sum(counts.reasons.values()),
        "samples": spool.num_rows,
        "reasons": {code: counts.reasons[code] for code in REASONS if counts.reasons[code]},
        "tokens": spool.num_tokens,
        "loss_tokens": spool.num_loss_tokens,
        "bytes_needed": plan.bytes_needed,
        "disk_plan": plan.as_json(),
        "longest": spool.longest,
        "embedding_rows": num_ids,
        "vocabulary": vocabulary,
        "tokenizer": type(tokenizer).__name__,
        "template_date": f"{TEMPLATE_DATE:%Y-%m-%d}" if counts.conversations and tokenize.renderer.uses_date else None,
        "ids_without_mask": counts.without_mask,
        "inputs": counts.inputs,
        "files": written,
    }
    if summary["accepted"] + summary["rejected"] != summary["rows_read"]:
        raise RuntimeError(f"bug: accepted and rejected rows are not all that were read: {summary}")
    write_json(results.summary, summary)
    _log_summary(summary, plan, results)
    return summary


class _Counts:
    def __init__(self) -> None:
        self.rows = self.accepted = self.without_mask = self.conversations = 0
        self.reasons: Counter[str] = Counter()
        self.inputs: dict[str, dict[str, int]] = {}

    def add(self, row: Row, result: list[Sample] | Rejected) -> None:
        self.rows += 1
        entry = self.inputs.setdefault(row.source_file, {"rows_read": 0, "accepted": 0, "rejected": 0})
        entry["rows_read"] += 1
        if isinstance(result, Rejected):
            entry["rejected"] += 1
            self.reasons[result.reason] += 1
            if self.reasons[result.reason] <= EXAMPLES:
                log.info("rejected: %s row %d: %s", row.source_file, row.source_row, result)
        else:
            entry["accepted"] += 1
            self.accepted += 1
            self.without_mask += not result[0].has_mask
            self.conversations += not has_ids(row.value)


def _read_all(
    inputs: list[Input], tokenize: BatchTokenizer, seen: DigestSet | None, spool: Spool, results: Results
) -> _Counts:
    counts = _Counts()
    progress = Progress("tokenize", sum(one.num_bytes for one in inputs), unit="bytes")
    begins = dict(
        zip((one.name for one in inputs), accumulate((one.num_bytes for one in inputs), initial=0), strict=False)
    )
    rows = (row for one in inputs for row in one.rows())
    with (
        atomic_path(results.rejected) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, REJECTED_SCHEMA, compression="zstd") as rejected,
    ):
        for outcome in tokenize.results(batches(rows)):
            if seen is not None:
                outcome = [(row, _unless_seen(seen, result)) for row, result in outcome]
            for row, result in outcome:
                counts.add(row, result)
            accepted = [
                (row, sample) for row, result in outcome if not isinstance(result, Rejected) for sample in result
            ]
            spool.add(accepted)
            _write_rejected(rejected, [(row, result) for row, result in outcome if isinstance(result, Rejected)])
            tokens = sum(sample.input_ids.size for _, sample in accepted)
            last, _ = outcome[-1]
            progress.add(begins[last.source_file] + last.position - progress.done, tokens=tokens)
    progress.add(max(0, progress.total - progress.done))  # what is read of a file after its last row
    progress.finish()
    return counts


def _unless_seen(seen: DigestSet, result: list[Sample] | Rejected) -> list[Sample] | Rejected:
    if isinstance(result, Rejected):
        return result
    if seen.add(content_digest((sample.input_ids, sample.loss_mask) for sample in result)):
        return result
    return Rejected("duplicate", f"{sum(sample.input_ids.size for sample in result):,} tokens, all as in a row before")


def _write_rejected(writer: pyarrow.parquet.ParquetWriter, rejected: list[tuple[Row, Rejected]]) -> None:
    if rejected:
        columns = {
            "source_file": [row.source_file for row, _ in rejected],
            "source_row": [row.source_row for row, _ in rejected],
            "reason": [result.reason for _, result in rejected],
            "detail": [_printable(result.detail) for _, result in rejected],
        }
        writer.write_table(pyarrow.table(columns, schema=REJECTED_SCHEMA))


def _printable(text: str) -> str:
    """A detail may quote a text that has no UTF-8 form."""
    return text.encode("utf-8", "backslashreplace").decode()


def _refuse_bad_corpus(counts: _Counts, max_rejected: float, results: Results) -> None:
    """Duplicates are left out because that was asked for; they are no sign that something is wrong."""
    rejected = sum(number for code, number in counts.reasons.items() if code != "duplicate")
    listed = ", ".join(f"{code} {number:,}" for code, number in counts.reasons.most_common() if code != "duplicate")
    if rejected > max_rejected * counts.rows or rejected == counts.rows:
        limit = f"more than conversations.max_rejected = {max_rejected:g} allows" if rejected < counts.rows else "all"
        raise UserError(
            f"{rejected:,} of {counts.rows:,} rows are rejected, {limit}: {listed}. Each is in {results.rejected} with "
            "its reason, and the first of each kind above; config/README.md explains the codes."
        )


def _write_chunks(results: Results, spool: Spool, num_chunks: int) -> dict[str, dict[str, Any]]:
    written = {}
    sizes = split_evenly(spool.lengths(), num_chunks)
    begin, lengths = 0, spool.lengths()
    for index, (count, part) in enumerate(zip(sizes, chunk_batches(spool.batches(), sizes), strict=True)):
        path = results.tokens(chunk_name(index))
        write_token_file(path, part)
        written[path.name] = _record(path, count, int(lengths[begin : begin + count].sum(dtype="int64")))
        begin += count
    return written


def _record(path: Path, rows: int, tokens: int = 0) -> dict[str, Any]:
    return {"checksum": file_checksum(path), "rows": rows, "tokens": tokens}


def _keys_and_lengths(spool: Spool) -> Iterator[tuple[list[str], Any]]:
    for batch in spool.batches():
        yield batch.column("key").to_pylist(), batch.column("n_tokens").to_numpy()


def _log_summary(summary: dict[str, Any], plan: DiskPlan, results: Results) -> None:
    log.info(
        "rows: %s read, %s accepted (%s samples), %s rejected",
        *(f"{summary[k]:,}" for k in ("rows_read", "accepted", "samples", "rejected")),
    )
    for code, number in summary["reasons"].items():
        log.info("  %s %s: %s", f"{number:,}", code, REASONS[code])
    if summary["ids_without_mask"]:
        log.warning("%d rows of input_ids have no loss_mask: every token of them has loss", summary["ids_without_mask"])
    log.info("tokens: %s, with loss %s; longest %s", *(f"{summary[k]:,}" for k in ("tokens", "loss_tokens", "longest")))
    log.info("disk: needs %s", plan.line())
    for folder, needed, free in places(results, plan):
        log.info("disk: %s of it in %s, where %s are free", readable(needed), folder, readable(free))
        if free < needed:
            log.warning("disk: not enough is free in %s; make room for %s more", folder, readable(needed - free))
