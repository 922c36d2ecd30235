"""The samples that have failed so far, for the last words of a run that did not get through."""

import contextlib
from collections import Counter

from hidden_states.errors import UserError
from hidden_states.extraction.journal import read_journal
from hidden_states.layout import Results
from hidden_states.store.manifest import read_manifest, reason_code


def failed_lines(results: Results, chunks: list[str], run_id: str, repeat: str = "") -> list[str]:
    """How many samples failed, by reason, and the command that tries them again; no lines when none did.

    A finished chunk has them in its manifest. One that is not finished tries them again by itself; the journal has
    those that failed in the run named ``run_id``. ``repeat``: the user's own options of snakemake.
    """
    reasons: Counter[str] = Counter()
    again = []
    for chunk in chunks:
        failed = _failed(results, chunk, run_id)
        reasons.update(reason_code(reason) for reason in failed)
        if failed and results.manifest(chunk).exists():
            again.append(str(results.manifest(chunk)))
    if not reasons:
        return []
    kinds = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(reasons.items()))
    command = ["snakemake --cores 8 all", *filter(None, [repeat]), *(["-R", *again] if again else [])]
    return [f"Samples that failed: {reasons.total():,} ({kinds}); to try them again:", f"  {' '.join(command)}"]


def _failed(results: Results, chunk: str, run_id: str) -> list[str | None]:
    if not results.manifest(chunk).exists():
        lines, _ = read_journal(results.journal(chunk))
        return [line["reason"] for line in lines.values() if line.get("reason") and line.get("run_id") == run_id]
    with contextlib.suppress(UserError):  # a damaged manifest is for `verify` to tell
        table = read_manifest(results.manifest(chunk), ["status", "reason"]).to_pydict()
        return [reason for status, reason in zip(table["status"], table["reason"], strict=True) if status == "failed"]
    return []
