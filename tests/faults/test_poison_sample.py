"""A sample whose ids the model does not have: the server dies of it, and nothing else does."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from helpers.fault_run import assert_same_dataset, assert_totals_add_up
from helpers.snakemake_run import Workflow
from helpers.survived import assert_survived, published
from hidden_states.extraction.journal import read_journal
from hidden_states.layout import Results
from hidden_states.store.checksums import file_checksum
from hidden_states.store.state_file import sample_key
from hidden_states.store.tokens import iterate_samples, keep_copy

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.workflow, pytest.mark.timeout(3600)]

CHUNK, ROW = "0003", 2
PAST_THE_VOCABULARY = 1_000_000


def poison(path: Path) -> int:
    """Give one sample of a token file an id that the model does not have, and the key of its new ids; its number."""
    table = pyarrow.parquet.read_table(path)
    columns = table.to_pydict()
    ids = columns["input_ids"][ROW]
    ids[len(ids) // 2] = PAST_THE_VOCABULARY
    columns["key"][ROW] = sample_key(pyarrow.array(ids, pyarrow.int64()).to_numpy().astype("<i8").tobytes())
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=table.schema), path)
    return columns["sample_id"][ROW]


def record(results: Results) -> None:
    """What tokenize writes down of the token file, for the file as it is now."""
    summary = json.loads(results.summary.read_text())
    summary["files"][f"{CHUNK}.parquet"]["checksum"] = file_checksum(results.tokens(CHUNK))
    results.summary.write_text(json.dumps(summary))
    keep_copy(results, CHUNK)


def deaths(results: Results) -> int:
    """Of the server, in the course of all runs, as the chunk's journal tells."""
    return sum(run["server_restarts"] for run in read_journal(results.journal(CHUNK))[1])


def test_a_token_file_changed_by_hand_is_put_right_before_anything_is_sent(run: Workflow, undisturbed: Path) -> None:
    """The first barrier: the file is not the one that the summary describes, and its copy is."""
    results = Results(run.folder / "results")
    code, output = run.run(str(results.summary.relative_to(run.folder)))
    assert code == 0, output
    right = results.tokens(CHUNK).read_bytes()
    poison(results.tokens(CHUNK))
    code, output = run.run("all")
    assert code == 0, output
    assert f"token file results/tokens/{CHUNK}.parquet was damaged; its copy takes its place" in output
    assert results.tokens(CHUNK).read_bytes() == right
    assert deaths(results) == 0
    assert_survived(run, undisturbed, {}, "an id past the vocabulary put into a token file")


def test_a_sample_that_kills_the_server_is_left_out_and_everything_else_is_made(
    run: Workflow, undisturbed: Path
) -> None:
    """The second barrier: files, copies and summary agree, as a wrong tokenizer would have written them."""
    results = Results(run.folder / "results")
    code, output = run.run(str(results.summary.relative_to(run.folder)))
    assert code == 0, output
    right = results.tokens(CHUNK).read_bytes()
    sample_id = poison(results.tokens(CHUNK))
    record(results)
    key = next(sample.key for sample in iterate_samples(results.tokens(CHUNK)) if sample.sample_id == sample_id)

    code, output = run.run("all")
    assert code == 1 and "Traceback (most recent call last)" not in output, output
    assert (
        f"chunk {CHUNK}: 1 samples failed: 1 kills_server; sample {sample_id}: kills_server: the server died" in output
    )
    assert "config key extraction.max_failed = 0.001 allows 0 of" in output
    assert not results.manifest(CHUNK).exists()
    before = published(run)
    assert (
        len(before) == sum(len(list(iterate_samples(path))) for path in results.summary.parent.glob("0*.parquet")) - 1
    )
    print(f"a sample that kills the server: isolated after {deaths(results)} deaths")
    assert deaths(results) <= 3, "the retries of the job try it again and again"

    run.config["extraction"]["max_failed"] = 0.5
    code, output = run.run("all")
    assert code == 0, output
    manifest = results.manifest(CHUNK).relative_to(run.folder)
    options = f"--configfile {run.folder / 'my.yaml'} --directory {run.folder}"
    retry = f"snakemake --cores 8 all {options} -R {manifest}"
    assert "failed and left out: 1 (kills_server: 1); to try again:" in output and retry in output
    (row,) = [row for row in pyarrow.parquet.read_table(results.manifest(CHUNK)).to_pylist() if row["key"] == key]
    assert row["status"] == "failed" and row["file"] is None
    assert row["reason"].startswith("kills_server: the server died 2 times while it had this sample alone")
    assert "kills_server" in (results.report / "run.html").read_text()
    assert_totals_add_up(run)
    comparison = assert_same_dataset(results.dataset("speculators"), undisturbed, without=[sample_id])
    print(f"the other rows: byte for byte {comparison.identical}, up to rounding {comparison.recomputed}")
    assert published(run) == before
    code, output = run.run("verify")
    assert code == 0, output
    assert "1 samples failed and are not in the dataset; to try them again:" in output and retry in output

    results.tokens(CHUNK).write_bytes(right)
    record(results)
    code, output = run.run("all")
    assert code == 0, output
    assert len(published(run)) == len(before) + 1
    assert_survived(run, undisturbed, before, "a sample that kills the server, put right")
