"""A damaged token file is made whole from its copy, and the other way round, and only from a good one."""

import pytest
from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.store.checksums import file_checksum
from hidden_states.store.tokens import check_token_file, keep_copy, make_whole


@pytest.fixture
def results(tmp_path) -> Results:
    results = Results(tmp_path)
    results.tokens("0000").parent.mkdir()
    results.tokens("0000").write_bytes(b"tokens")
    write_json(results.summary, {"files": {"0000.parquet": {"checksum": file_checksum(results.tokens("0000"))}}})
    keep_copy(results, "0000")
    return results


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"tokenz"), lambda file: file.unlink()])
def test_a_damaged_or_missing_file_is_replaced_by_its_copy(results, damage):
    damage(results.tokens("0000"))
    with pytest.raises(UserError):
        check_token_file(results, "0000")
    make_whole(results, "0000")
    check_token_file(results, "0000")


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"tokenz"), lambda file: file.unlink()])
def test_a_damaged_or_missing_copy_is_made_again(results, damage):
    damage(results.token_copy("0000"))
    make_whole(results, "0000")
    assert results.token_copy("0000").read_bytes() == b"tokens"
    check_token_file(results, "0000")


def test_a_good_file_is_not_touched(results):
    before = results.tokens("0000").stat()
    make_whole(results, "0000")
    assert results.tokens("0000").stat().st_ino == before.st_ino


def test_a_damaged_copy_replaces_nothing(results):
    results.tokens("0000").write_bytes(b"tokenz")
    results.token_copy("0000").write_bytes(b"tokenx")
    make_whole(results, "0000")
    assert results.tokens("0000").read_bytes() == b"tokenz"
    with pytest.raises(UserError, match="changed since it was written"):
        check_token_file(results, "0000")
