"""What a run that did not get through says of its failed samples."""

from pathlib import Path

import pytest
from hidden_states.extraction.failed import failed_lines
from hidden_states.extraction.journal import Journal
from hidden_states.layout import Results
from hidden_states.store.manifest import write_manifest


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def manifest(results: Results, chunk: str, reasons: list[str | None]) -> None:
    row = {"fingerprint": "f" * 32, "n_tokens": 3, "slots": 4, "hidden_size": 8, "dtype": "BF16", "bytes": 0}
    row |= dict.fromkeys(("file", "checksum", "seconds", "published"))
    rows = [
        {**row, "sample_id": index, "key": f"{index:032x}", "status": "failed" if reason else "ok", "reason": reason}
        for index, reason in enumerate(reasons)
    ]
    write_manifest(results.manifest(chunk), rows)


def journal(results: Results, chunk: str, run_id: str, reasons: dict[str, str | None]) -> None:
    with Journal(results.journal(chunk), run_id) as lines:
        for key, reason in reasons.items():
            lines.sample(key, 3, 1, reason=reason)


def test_a_finished_chunk_has_to_be_forced_and_an_unfinished_one_goes_on_by_itself(results):
    manifest(results, "0000", [None, "refused: HTTP 400: no", None])
    manifest(results, "0001", [None])
    journal(results, "0002", "this", {"a": "not_finite: slot 1", "b": "refused: HTTP 400: no", "c": None})
    assert failed_lines(results, ["0000", "0001", "0002", "0003"], "this", "--configfile my.yaml") == [
        "Samples that failed: 3 (not_finite: 1, refused: 2); to try them again:",
        f"  snakemake --cores 8 all --configfile my.yaml -R {results.manifest('0000')}",
    ]


def test_failures_of_an_unfinished_chunk_need_no_forcing(results):
    journal(results, "0000", "this", {"a": "refused: HTTP 400: no"})
    assert failed_lines(results, ["0000"], "this")[1] == "  snakemake --cores 8 all"


def test_what_failed_in_an_earlier_run_or_went_well_later_does_not_count(results):
    journal(results, "0000", "earlier", {"a": "refused: HTTP 400: no"})
    journal(results, "0001", "this", {"b": "refused: HTTP 400: no"})
    journal(results, "0001", "this", {"b": None})
    results.manifest("0002").parent.mkdir()
    results.manifest("0002").write_bytes(b"damaged")
    assert failed_lines(results, ["0000", "0001", "0002"], "this") == []
