"""Locks of devices, and the folder that holds them."""

import contextlib
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from hidden_states.errors import UserError
from hidden_states.server.record import STARTING, Record, write_record
from hidden_states.server.slots import FOLDER_VARIABLE, Slot, acquire, all_slots, is_locked, neighbours, slot_folder
from hidden_states.server.slots import try_lock as lock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "slots"))
    return slot_folder()


def slot_of(folder: Path, *devices: int) -> Slot:
    return Slot(folder, 0, tuple(f"cuda-{device}" for device in devices))


def is_free(slot: Slot) -> bool:
    with contextlib.ExitStack() as stack:
        return lock(stack, slot.lease_files)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [((0, 1), (2, 3), False), ((0, 1), (1, 2), True), ((0, 1, 2, 3), (3,), True), ((2,), (0, 1, 2), True)],
)
def test_slots_that_share_a_device_collide_and_others_do_not(folder, one, other, collide):
    with acquire([slot_of(folder, *one)]):
        assert is_free(slot_of(folder, *other)) is not collide
    assert is_free(slot_of(folder, *other))


def test_a_try_that_fails_leaves_nothing_locked(folder):
    with acquire([slot_of(folder, 2)]):
        assert not is_free(slot_of(folder, 0, 1, 2))
        assert is_free(slot_of(folder, 0, 1))


def test_the_first_free_slot_is_given(folder):
    slots = all_slots("cpu", 3, 1)
    with acquire(slots) as one, acquire(slots) as two, acquire(slots) as three:
        assert [one, two, three] == slots
        assert all(is_locked(slot.lease_files) for slot in slots)
    assert not any(is_locked(slot.lease_files) for slot in slots)


def test_a_client_waits_for_the_slot_until_it_is_given_back(folder):
    slots = all_slots("cpu", 1, 1)
    got = threading.Event()

    def client() -> None:
        with acquire(slots):
            got.set()

    waiting = threading.Thread(target=client)
    with acquire(slots):
        waiting.start()
        assert not got.wait(0.6)
    assert got.wait(5)
    waiting.join(5)


def test_the_lock_is_given_back_after_an_error(folder):
    slots = all_slots("cpu", 1, 1)
    with pytest.raises(ZeroDivisionError), acquire(slots):
        raise ZeroDivisionError
    assert not is_locked(slots[0].lease_files)


def test_lock_files_are_private_and_not_inherited(folder):
    slot = slot_of(folder, 0)
    with contextlib.ExitStack() as stack:
        assert lock(stack, slot.lease_files, note="pid 1")
        lock_file = str(slot.lease_files[0].resolve())
        opened = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == lock_file]
        assert len(opened) == 1 and fcntl.fcntl(opened[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert stat.S_IMODE(slot.lease_files[0].stat().st_mode) == 0o600
    assert slot.lease_files[0].read_text() == "pid 1"


def test_a_lock_file_that_is_a_link_is_not_followed(folder, tmp_path):
    slot, victim = slot_of(folder, 0), tmp_path / "victim"
    victim.write_text("precious")
    slot.lease_files[0].symlink_to(victim)
    with pytest.raises(OSError), contextlib.ExitStack() as stack:
        lock(stack, slot.lease_files, note="pid 1")
    assert victim.read_text() == "precious"


def test_neighbours_are_the_servers_that_share_a_device(folder):
    for devices in ((0, 1), (2, 3)):
        slot = slot_of(folder, *devices)
        write_record(slot.record, Record(STARTING, "i", "h", "r", list(slot.devices), "d", "l", "p"))
    slot_of(folder, 0, 1).checked.write_text("{}")
    assert [path for path, _ in neighbours(slot_of(folder, 1))] == [slot_of(folder, 0, 1).record]
    assert len(neighbours(slot_of(folder, 1, 2))) == 2
    assert neighbours(slot_of(folder, 4)) == []


def test_the_folder_is_made_private(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(UserError, match=f"mode {mode:o}.*chmod 700"):
        slot_folder()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_that_is_none_is_refused(tmp_path, monkeypatch, kind):
    named = tmp_path / "named"
    if kind == "file":
        named.write_text("")
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        named.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv(FOLDER_VARIABLE, str(named))
    with pytest.raises(UserError, match=FOLDER_VARIABLE):
        slot_folder()


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(UserError, match="belongs to another user"):
        slot_folder()
