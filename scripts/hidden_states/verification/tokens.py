"""Token files and their copies in full: what the summary recorded of them, and every row's ids against its key."""

import json
from pathlib import Path
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.pool import parallel
from hidden_states.store.checksums import file_checksum
from hidden_states.store.state_file import sample_key
from hidden_states.store.tokens import check_token_file, iterate_samples
from hidden_states.verification.findings import Findings

RECORDS = "damaged or missing records of tokenize"


def check_tokens(results: Results, chunks: list[str], findings: Findings) -> set[str]:
    """Check the token files of ``chunks``, their copies, the rejected rows and the summary; return the chunks whose
    token file is in order."""
    try:
        summary: dict[str, Any] = json.loads(results.summary.read_text(encoding="utf-8"))
        recorded = {name: entry["checksum"] for name, entry in summary["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        findings.step_again(RECORDS, results.summary, f"cannot be read ({error})")
        return set()
    rejected = results.rejected.name
    if rejected in recorded and (problem := _against(results.rejected, recorded[rejected])):
        findings.step_again(RECORDS, results.rejected, problem)
    good = set()
    for chunk, problem in parallel(lambda chunk: _problem(results, chunk), chunks):
        if problem is None:
            good.add(chunk)
        else:
            findings.token_file(chunk, results.tokens(chunk), problem)
        # The second barrier against rot must not rot unseen.
        copy = results.token_copy(chunk)
        if copy_problem := _against(copy, recorded.get(f"{chunk}.parquet")):
            findings.token_file(chunk, copy, copy_problem)
    return good


def _against(path: Path, checksum: str | None) -> str | None:
    try:
        return None if file_checksum(path) == checksum else "changed since it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _problem(results: Results, chunk: str) -> str | None:
    try:
        check_token_file(results, chunk)
        for sample in iterate_samples(results.tokens(chunk)):
            if sample_key(sample.token_ids.astype("<i8").tobytes()) != sample.key:
                return f"the ids of sample {sample.sample_id} are not those of its key"
    except UserError as error:
        return str(error).split(";")[0]
    return None
