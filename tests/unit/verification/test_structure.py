"""The gate: a chunk passes only when manifest, tokens and state headers fit together."""

import json
import os
from pathlib import Path

import pytest
from helpers.finished_run import Run
from helpers.manifests import edit_manifest
from hidden_states.errors import UserError
from hidden_states.store.checksums import file_checksum
from hidden_states.verification.structure import verify_chunk


def test_a_good_chunk_gets_its_record_always_the_same(run: Run):
    verify_chunk(run.results, "0000")
    path = run.results.chunk_qa("0000")
    first = path.read_bytes()
    good = [sample for sample in run.chunks[0] if sample.states is not None]
    assert json.loads(first) == {
        "chunk": "0000",
        "manifest": file_checksum(run.results.manifest("0000")),
        "samples": 4,
        "ok": 3,
        "failed": {"timeout": 1},
        "tokens": sum(len(sample.ids) for sample in good),
        "bytes": sum(run.state_path(run.key(row)).stat().st_size for row in range(3)),
        "fingerprint": run.fingerprint,
    }
    verify_chunk(run.results, "0000")
    assert path.read_bytes() == first


def test_an_empty_chunk_passes(run: Run):
    assert verify_chunk(run.results, "0002").samples == 0


def overwrite(path: Path, offset: int, data: bytes) -> None:
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def replace(path: Path) -> None:
    """The same content in another file."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: (path.chmod(0o644), os.truncate(path, 1030)), "truncated"),
        (lambda path: overwrite(path, 40, b"#"), "header_damaged"),
        (replace, "replaced"),
    ],
    ids=["missing", "cut", "damaged header", "replaced"],
)
def test_a_wrong_state_file_stops_the_chunk_and_is_named(run: Run, fault, words):
    path = run.state_path(run.key(1))
    fault(path)
    with pytest.raises(UserError, match=rf"chunk 0000, sample 1: state file {path}: {words}.*snakemake verify"):
        verify_chunk(run.results, "0000")
    assert not run.results.chunk_qa("0000").exists()


def test_another_samples_state_is_foreign(run: Run):
    path = run.state_path(run.key(1))
    path.unlink()
    os.link(run.state_path(run.key(2)), path)
    with pytest.raises(UserError, match="sample 1: .* foreign"):
        verify_chunk(run.results, "0000")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda rows: rows.pop(), "ends before sample 3"),
        (lambda rows: rows.append(dict(rows[0])), "has sample 0 .* token file has none"),
        (lambda rows: rows.reverse(), "has sample 3 .* token file has 0"),
        (lambda rows: rows[1].update(n_tokens=1), "sample 1 .* 1 tokens"),
        (lambda rows: rows[1].update(fingerprint="e" * 32), "sample 1 has fingerprint e+, others"),
        (lambda rows: rows[1].update(status="fine"), "sample 1: its status is 'fine'"),
        (lambda rows: rows[1].update(file="elsewhere"), "sample 1: its file is elsewhere"),
        (lambda rows: rows[2].update(reason=None), "sample 2: it failed, but has no reason"),
        (lambda rows: rows[1].update(checksum="0" * 32), "sample 1: .* checksum_mismatch"),
    ],
)
def test_a_manifest_that_does_not_fit_stops_the_chunk(run: Run, edit, words):
    edit_manifest(run.results, "0000", edit)
    with pytest.raises(UserError, match=f"chunk 0000.*{words}"):
        verify_chunk(run.results, "0000")


def test_a_changed_token_file_stops_the_chunk(run: Run):
    path = run.results.tokens("0001")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="token file .*0001.parquet changed"):
        verify_chunk(run.results, "0001")
