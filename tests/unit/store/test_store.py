"""A name in the store stands for a whole, checked, read-only file, whatever happened on the way."""

import os

import numpy
import pytest
from helpers.states import FINGERPRINT, header_for, write_state
from hidden_states.layout import Results
from hidden_states.store import store as store_module
from hidden_states.store.checksums import StateFileError, check_state_file
from hidden_states.store.store import Store, stale_copies, stored_files

IDS = [5, 9, 2]


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")


@pytest.fixture
def store(results):
    return Store(results, FINGERPRINT)


def dumped(results, ids=IDS, name="rid"):
    file = results.dump / f"{name}.safetensors"
    write_state(file, ids)
    return file, check_state_file(file, header_for(ids), numpy.array(ids))


def test_publishing_renames_a_checked_file_and_makes_it_read_only(results, store):
    file, checked = dumped(results)
    inode = file.stat().st_ino
    published = store.publish(file, checked)
    store.sync()
    key = checked.header.key
    assert published.path == store.path(key) == results.states / FINGERPRINT / key[:2] / f"{key}.safetensors"
    status = published.path.stat()
    assert (status.st_ino, status.st_mode & 0o777) == (inode, 0o444)
    assert not file.exists()
    assert store.has(header_for(IDS)) == published


def test_a_state_is_there_only_with_the_right_size_and_header(store, results):
    file, checked = dumped(results)
    store.publish(file, checked)
    assert store.has(header_for([1, 2])) is None
    path = store.path(checked.header.key)
    content = path.read_bytes()
    path.unlink()
    for broken in (content[:-1], b"x" + content[1:], b""):
        path.write_bytes(broken)
        assert store.has(header_for(IDS)) is None


def test_the_first_of_two_jobs_that_publish_the_same_state_wins(store, results):
    first, second = dumped(results, name="one"), dumped(results, name="two")
    published = store.publish(*first)
    assert store.publish(*second) == published
    assert list(results.dump.iterdir()) == []


def test_a_broken_file_under_the_name_is_quarantined_not_lost(store, results):
    file, checked = dumped(results)
    path = store.path(checked.header.key)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"broken")
    store.publish(file, checked)
    assert check_state_file(path, header_for(IDS))
    moved = results.quarantine / path.relative_to(results.root)
    assert moved.read_bytes() == b"broken"


@pytest.fixture
def other_file_system(monkeypatch, results):
    monkeypatch.setattr(store_module, "_device", lambda path: 2 if results.dump in path.parents else 1)


@pytest.mark.usefixtures("other_file_system")
def test_a_dump_on_another_file_system_is_copied_checked_and_removed(store, results):
    file, checked = dumped(results)
    published = store.publish(file, checked)
    assert check_state_file(published.path, header_for(IDS)).header == checked.header
    assert not file.exists()
    assert list((store.directory / "incoming").iterdir()) == []


@pytest.mark.usefixtures("other_file_system")
def test_a_copy_that_came_over_cut_never_gets_a_name(store, results, monkeypatch):
    file, checked = dumped(results)
    monkeypatch.setattr(
        store_module.shutil, "copyfileobj", lambda source, target, length: target.write(source.read()[:-5])
    )
    with pytest.raises(StateFileError, match="truncated"):
        store.publish(file, checked)
    assert file.exists()
    assert store.has(header_for(IDS)) is None
    assert list((store.directory / "incoming").iterdir()) == []


def test_copies_of_dead_processes_are_swept_and_those_of_living_ones_stay(store, results):
    incoming = store.directory / "incoming"
    incoming.mkdir(parents=True)
    dead, alive = incoming / "999999999.x.safetensors", incoming / f"{os.getpid()}.x.safetensors"
    dead.touch(), alive.touch()
    assert list(stale_copies(results)) == [dead]
    store.remove_stale_copies()
    assert list(incoming.iterdir()) == [alive]


def test_evicting_counts_what_it_removed(store, results):
    file, checked = dumped(results)
    store.publish(file, checked)
    size = checked.header.file_bytes
    assert store.evict([checked.header.key, "ab" * 16]) == (1, size)
    assert store.has(header_for(IDS)) is None


def test_listing_tells_states_from_foreign_files(store, results):
    file, checked = dumped(results)
    published = store.publish(file, checked)
    foreign = [
        results.states / "note.txt",
        results.states / "not-a-fingerprint" / "deep" / "file",
        store.directory / "zz" / "file",
        published.path.with_name("x.safetensors"),
        published.path.with_name("00" + checked.header.key[2:] + ".safetensors"),
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = list(stored_files(results))
    assert [(file.fingerprint, file.key) for file in found if not file.foreign] == [(FINGERPRINT, checked.header.key)]
    assert {file.path for file in found if file.foreign} == set(foreign)


@pytest.mark.parametrize("name", ["../" * 11 + "a", "", "AB" * 16, "ab" * 17])
def test_a_key_that_is_no_hash_never_becomes_a_path(store, name):
    with pytest.raises(ValueError, match="not a key"):
        store.path(name)
