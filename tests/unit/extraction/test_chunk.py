"""What a chunk leaves behind, and what it does not do twice."""

import json
import os

import numpy
import pytest
from helpers.extraction_bench import CHUNK, prompts
from helpers.states import header_for
from hidden_states.errors import UserError
from hidden_states.extraction import chunk as chunk_module
from hidden_states.extraction.journal import read_journal
from hidden_states.store import store as store_module
from hidden_states.store.checksums import check_state_file
from hidden_states.store.tickets import write_ticket


def no_lease(longest):
    pytest.fail("a server was asked for")


def test_a_chunk_becomes_checked_states_and_a_manifest_that_describes_them(bench):
    ids = prompts(20)
    keys = bench.write(ids)
    bench.extract()
    rows = bench.rows()
    assert [row["key"] for row in rows] == keys
    assert [row["sample_id"] for row in rows] == list(range(20))
    for row, tokens in zip(rows, ids, strict=True):
        checked = check_state_file(bench.results.root / row["file"], header_for(tokens), numpy.array(tokens))
        assert row["checksum"] == checked.header.checksum
        assert row["published"] == checked.published
        assert (row["status"], row["reason"], row["bytes"]) == ("ok", None, checked.path.stat().st_size)
        assert row["seconds"] > 0
    assert bench.space_asked == [sum(row["bytes"] for row in rows)]
    assert list(bench.server.dump.iterdir()) == []
    (run,) = bench.runs()
    assert (run["samples"], run["reused"], run["failed"]) == (20, 0, 0)
    assert run["tokens"] == sum(len(tokens) for tokens in ids)
    assert run["tokens_per_second"] > 0


def test_what_is_in_the_store_needs_no_server_and_gives_the_same_manifest_bytes(bench):
    bench.write(prompts(5))
    bench.extract()
    manifest = bench.results.manifest(CHUNK)
    before, journal = manifest.read_bytes(), bench.results.journal(CHUNK).read_bytes()
    manifest.unlink()
    bench.extract(lease=no_lease)
    assert manifest.read_bytes() == before
    assert bench.results.journal(CHUNK).read_bytes() == journal


def test_only_what_is_missing_is_computed(bench):
    keys = bench.write(prompts(6))
    bench.extract()
    marks = {row["key"]: row["published"] for row in bench.rows()}
    bench.store.evict([keys[2]])
    bench.server.requests.clear()
    bench.extract()
    assert bench.server.keys_requested() == [keys[2]]
    changed = {row["key"] for row in bench.rows() if row["published"] != marks[row["key"]]}
    assert changed == {keys[2]}
    assert all(row["seconds"] > 0 for row in bench.rows())


def test_equal_prompts_of_a_chunk_are_computed_once_and_share_a_file(bench):
    same = [7, 8, 9]
    keys = bench.write([same, [1, 2], same])
    bench.extract()
    assert sorted(bench.server.keys_requested()) == sorted(set(keys))
    rows = bench.rows()
    assert rows[0] | {"sample_id": 2} == rows[2]


def test_an_empty_chunk_gives_an_empty_manifest_without_a_server(bench):
    bench.write([])
    bench.extract(lease=no_lease)
    assert bench.rows() == []


def test_ticketed_states_are_read_in_full_and_only_broken_ones_computed_anew(bench):
    keys = bench.write(prompts(4))
    bench.extract()
    rotten = bench.store.path(keys[1])
    content = bytearray(rotten.read_bytes())
    content[1100] ^= 1
    os.chmod(rotten, 0o644)
    rotten.write_bytes(content)  # size and header are right: only the ticket makes it found
    bench.server.requests.clear()
    bench.extract()
    assert bench.server.requests == []
    write_ticket(bench.results, CHUNK, keys={keys[1]: "checksum_mismatch", keys[2]: "a false alarm", "ff" * 16: "gone"})
    good = bench.store.path(keys[2]).stat().st_ino
    bench.extract()
    assert bench.server.keys_requested() == [keys[1]]
    assert bench.store.path(keys[2]).stat().st_ino == good
    assert check_state_file(rotten, header_for(prompts(4)[1]))
    quarantined = bench.results.quarantine / rotten.relative_to(bench.results.root)
    assert quarantined.read_bytes() == content


def test_a_cut_state_is_computed_anew_without_a_ticket_and_kept_in_quarantine(bench):
    keys = bench.write(prompts(3))
    bench.extract()
    cut = bench.store.path(keys[0])
    os.chmod(cut, 0o644)
    os.truncate(cut, 1100)
    bench.server.requests.clear()
    bench.extract()
    assert bench.server.keys_requested() == [keys[0]]
    assert (bench.results.quarantine / cut.relative_to(bench.results.root)).stat().st_size == 1100


def test_a_changed_token_file_is_refused_before_anything_is_sent(bench):
    bench.write(prompts(3))
    path = bench.results.tokens(CHUNK)
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    bench.results.token_copy(CHUNK).unlink()
    with pytest.raises(UserError, match="changed since it was written"):
        bench.extract(lease=no_lease)


def test_a_prompt_longer_than_the_server_takes_is_refused_before_the_first_request(bench):
    bench.server.max_req_input_len = 8
    bench.write([[1] * 7, [2] * 8])
    with pytest.raises(UserError, match=r"longer than the 7 tokens.*: 1 \(8 tokens\).*conversations.max_tokens to 7"):
        bench.extract()
    assert bench.server.requests == []


def test_too_little_space_is_refused_before_a_server_is_asked_for(bench, monkeypatch):
    bench.write(prompts(3))

    def refuse(num_bytes):
        raise UserError(f"{num_bytes} bytes are needed")

    monkeypatch.setattr(bench.space_asked, "append", refuse) if False else None
    bench.space_asked = type("Refusing", (), {"append": staticmethod(refuse)})()
    with pytest.raises(UserError, match="bytes are needed"):
        bench.extract(lease=no_lease)


def test_concurrency_is_bounded_and_used(bench):
    bench.server.answer_delay = 0.02
    bench.write(prompts(30))
    bench.extract()
    assert bench.server.most_in_flight == bench.concurrency


def test_files_of_a_client_that_was_killed_are_removed_and_its_rids_never_reused(bench):
    bench.write(prompts(2))
    bench.extract()
    first = {rid for rid, _ in bench.server.requests}
    stale = bench.server.dump / f"hs-{CHUNK}-left-over.safetensors"
    other_chunk = bench.server.dump / "hs-0004-left-over.safetensors.claimed"
    other_server = bench.server.dump / "other-left-over.safetensors"
    stale.touch(), other_chunk.touch(), other_server.touch()
    bench.store.evict([header_for(ids).key for ids in prompts(2)])
    bench.extract()
    assert list(bench.server.dump.iterdir()) == [other_server]
    assert not first & {rid for rid, _ in bench.server.requests[2:]}
    assert all(
        rid.startswith(f"hs-{CHUNK}-{key}-") and rid.replace("-", "").isalnum() for rid, key in bench.server.requests
    )


def test_a_torn_journal_line_costs_nothing_but_itself(bench):
    keys = bench.write(prompts(3))
    bench.extract()
    journal = bench.results.journal(CHUNK)
    with open(journal, "ab") as file:
        file.write(b'{"key": "torn')
    bench.store.evict([keys[0]])
    bench.extract()
    samples, runs = read_journal(journal)
    assert set(samples) == set(keys)
    assert samples[keys[0]]["published"] == bench.rows()[0]["published"]
    assert len(runs) == 2
    assert json.loads(journal.read_text().splitlines()[-1])["run"]["samples"] == 1


def test_every_state_is_durable_before_a_manifest_names_it(bench, monkeypatch):
    bench.write(prompts(5))
    synced, at_manifest = set(), set()
    monkeypatch.setattr(store_module, "fsync_directory", synced.add)
    monkeypatch.setattr(chunk_module, "write_manifest", lambda path, rows: at_manifest.update(synced))
    bench.extract()
    shards = {path.parent for path in bench.store.directory.glob("*/*.safetensors")}
    assert shards
    assert shards | {bench.store.directory, bench.results.states} == at_manifest


def test_a_foreign_api_key_never_gets_a_sample_through(bench):
    bench.server.headers = {"Authorization": "Bearer wrong"}
    bench.write(prompts(2))
    with pytest.raises(UserError, match=r"refused: HTTP 401: Unauthorized"):
        bench.extract()
    assert not bench.results.manifest(CHUNK).exists()
