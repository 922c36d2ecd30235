"""Fingerprint, manifest, token files and tickets."""

import hashlib

import pyarrow
import pyarrow.parquet
import pytest
from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.store.checksums import file_checksum
from hidden_states.store.fingerprint import fingerprint
from hidden_states.store.manifest import read_manifest, write_manifest
from hidden_states.store.tickets import DATASET, damaged_keys, read_ticket, write_ticket
from hidden_states.store.tokens import check_token_file, iterate_samples, read_tokens

ROW = {
    "sample_id": 7,
    "key": "ab" * 16,
    "fingerprint": "cd" * 16,
    "status": "ok",
    "reason": None,
    "file": "states/x",
    "n_tokens": 3,
    "slots": 4,
    "hidden_size": 8,
    "dtype": "BF16",
    "checksum": "0f" * 16,
    "bytes": 1240,
    "seconds": 0.25,
    "published": "1:2",
}


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def test_fingerprint_ignores_the_order_of_keys_and_nothing_else():
    one = fingerprint({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert one == fingerprint({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert one != fingerprint({"a": 1, "b": {"c": [2, 1], "d": None}})
    assert fingerprint({}) == hashlib.blake2b(b"{}", digest_size=16).hexdigest()


def test_equal_rows_give_equal_manifest_bytes(tmp_path):
    for name in ("one", "two"):
        write_manifest(tmp_path / name, [ROW, ROW | {"sample_id": 8, "status": "failed", "file": None}])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read_manifest(tmp_path / "one").to_pylist()[0] == ROW
    assert read_manifest(tmp_path / "one", ["file"]).to_pydict() == {"file": ["states/x", None]}


def test_an_empty_manifest_keeps_its_columns(tmp_path):
    write_manifest(tmp_path / "empty", [])
    assert read_manifest(tmp_path / "empty").num_rows == 0


def test_a_manifest_that_is_absent_damaged_or_other_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_manifest(tmp_path / "absent")
    (tmp_path / "damaged").write_bytes(b"no parquet at all")
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(tmp_path / "damaged")
    pyarrow.parquet.write_table(pyarrow.table({"key": ["x"]}), tmp_path / "other")
    with pytest.raises(UserError, match="other columns"):
        read_manifest(tmp_path / "other")


def write_token_file(results, chunk, rows):
    path = results.tokens(chunk)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(
        {
            "sample_id": pyarrow.array(range(len(rows)), pyarrow.int64()),
            "key": pyarrow.array([f"{row:032x}" for row in range(len(rows))], pyarrow.string()),
            "input_ids": pyarrow.array(rows, pyarrow.list_(pyarrow.int32())),
        }
    )
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    write_json(results.summary, {"files": {path.name: {"checksum": file_checksum(path)}}})
    return path


def test_samples_stream_in_order_with_their_own_ids(results):
    rows = [list(range(number, number + 1 + number % 7)) for number in range(200)]
    path = write_token_file(results, "0000", rows)
    samples = list(iterate_samples(path))
    assert [sample.token_ids.tolist() for sample in samples] == rows
    assert [sample.sample_id for sample in samples] == list(range(200))
    assert {sample.token_ids.dtype.name for sample in samples} == {"int64"}
    assert read_tokens(path, ["key"]).num_rows == 200


def test_a_token_file_that_changed_since_it_was_written_is_refused(results):
    path = write_token_file(results, "0000", [[1, 2], [3]])
    check_token_file(results, "0000")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="changed since it was written"):
        check_token_file(results, "0000")
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        check_token_file(results, "0000")
    results.summary.write_text("{")
    with pytest.raises(UserError, match="damaged or does not list"):
        check_token_file(results, "0000")


def test_a_ticket_names_damaged_keys_until_it_is_rewritten(results):
    assert damaged_keys(results, "0003") == {}
    write_ticket(results, "0003", keys={"ab": "truncated"})
    assert damaged_keys(results, "0003") == {"ab": "truncated"}
    write_ticket(results, DATASET, files={"dataset/x": "missing"}, store={})
    assert read_ticket(results, DATASET)["files"] == {"dataset/x": "missing"}
    assert read_ticket(results, "0003")["time"]
    results.ticket("0003").write_text("{")
    with pytest.raises(UserError, match="snakemake verify"):
        damaged_keys(results, "0003")
