"""Evicting and pruning remove what they say and nothing else."""

import argparse
import os

import numpy
import pytest
from helpers.states import FINGERPRINT, header_for, write_state
from helpers.token_files import write_token_file
from hidden_states.commands import prune
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.store.checksums import check_state_file
from hidden_states.store.cleanup import evict_chunk, find_unreferenced
from hidden_states.store.manifest import write_manifest
from hidden_states.store.store import Store

OTHER_FINGERPRINT = "0e" * 16
SHARED = [9, 9]


@pytest.fixture
def results(tmp_path):
    """Two chunks of two samples each, one of them the same in both, and one orphan."""
    results = Results(tmp_path / "results")
    for chunk, prompts in (("0000", [[1, 2], SHARED]), ("0001", [SHARED, [3, 4, 5]]), ("0002", [[7, 7]])):
        write_token_file(results, chunk, prompts)
        write_manifest(results.manifest(chunk), [row(publish(results, ids)) for ids in prompts])
    publish(results, [8, 8, 8])
    return results


def publish(results, ids):
    file = results.dump / "x.safetensors"
    write_state(file, ids)
    return Store(results, FINGERPRINT).publish(file, check_state_file(file, header_for(ids), numpy.array(ids)))


def row(state):
    return {
        "sample_id": 0,
        "key": state.header.key,
        "fingerprint": FINGERPRINT,
        "status": "ok",
        "n_tokens": state.header.num_tokens,
        "slots": 4,
        "hidden_size": 8,
        "dtype": "BF16",
        "bytes": state.header.file_bytes,
    }


def present(results, ids):
    return Store(results, FINGERPRINT).has(header_for(ids)) is not None


def test_evicting_a_chunk_removes_its_states_and_every_manifest_that_names_them(results):
    evicted = evict_chunk(results, "0000", Store(results, FINGERPRINT))
    assert evicted.count == 2
    assert evicted.num_bytes == header_for([1, 2]).file_bytes + header_for(SHARED).file_bytes
    assert evicted.chunks == ["0000", "0001"]
    assert [present(results, ids) for ids in ([1, 2], SHARED, [3, 4, 5], [7, 7])] == [False, False, True, True]
    assert [results.manifest(chunk).exists() for chunk in ("0000", "0001", "0002")] == [False, False, True]


def test_evicting_an_unknown_chunk_is_a_clear_error(results):
    with pytest.raises(UserError, match="0009.parquet does not exist"):
        evict_chunk(results, "0009", Store(results, FINGERPRINT))


def test_pruning_finds_orphans_and_removes_only_them(results):
    found = find_unreferenced(results, FINGERPRINT)
    assert [state.key for state in found.states] == [header_for([8, 8, 8]).key]
    assert (found.num_bytes, found.linked_bytes) == (header_for([8, 8, 8]).file_bytes, 0)
    found.remove()
    assert find_unreferenced(results, FINGERPRINT).states == []
    assert all(present(results, ids) for ids in ([1, 2], SHARED, [3, 4, 5], [7, 7]))


def test_states_that_the_next_run_would_use_are_no_orphans(results):
    results.manifest("0002").unlink()
    assert len(find_unreferenced(results, FINGERPRINT).states) == 1
    assert len(find_unreferenced(results, OTHER_FINGERPRINT).states) == 2


def test_a_chunk_without_a_token_file_is_left_over_and_protects_nothing(results):
    results.tokens("0002").unlink()
    found = find_unreferenced(results, FINGERPRINT)
    assert found.chunks == [results.chunks / "0002"]
    assert {state.key for state in found.states} == {header_for([8, 8, 8]).key, header_for([7, 7]).key}
    found.remove()
    assert not (results.chunks / "0002").exists()


def test_bytes_that_a_hard_link_keeps_are_told_apart(results):
    orphan = Store(results, FINGERPRINT).path(header_for([8, 8, 8]).key)
    os.link(orphan, results.root / "link")
    found = find_unreferenced(results, FINGERPRINT)
    assert found.linked_bytes == found.num_bytes > 0


def test_an_unreadable_manifest_stops_pruning(results):
    results.manifest("0001").write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged"):
        find_unreferenced(results, FINGERPRINT)


def test_states_of_a_store_that_may_be_shared_are_listed_and_never_pruned(results, tmp_path):
    results.states.rename(tmp_path / "shared")
    results.states.symlink_to(tmp_path / "shared")
    with pytest.raises(UserError, match="a store that other runs may use"):
        prune.run({}, results, argparse.Namespace(yes=True))
    assert present(results, [8, 8, 8])
