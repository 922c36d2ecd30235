"""Each fault of the server or the disk has its own answer, and none costs more than it must."""

import errno
import re
import threading
from dataclasses import replace

import pytest
from helpers.extraction_bench import CHUNK, QUICK, prompts
from hidden_states.errors import UserError
from hidden_states.extraction import attempt
from hidden_states.extraction.limits import Limits


@pytest.mark.parametrize("fault", ["500", "drop", "nan", "short", "ids", "layers", "lost", "hook_failed", "stalled"])
def test_a_passing_fault_costs_one_more_request_and_nothing_else(bench, fault):
    keys = bench.write(prompts(6))
    bench.server.faults[keys[2]] = [fault]
    bench.extract()
    assert set(bench.reasons().values()) == {None}
    assert sorted(bench.server.keys_requested()) == sorted([*keys, keys[2]])
    assert bench.server.starts == 1
    assert list(bench.server.dump.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("500", "HTTP 500: something broke"),
        ("drop", "connection"),
        ("nan", r"not_finite: row 0, slot 1 \(layer 4\), column 2"),
        ("short", "foreign: key"),
        ("ids", "wrong_token_ids"),
        ("layers", "wrong_layers"),
        ("lost", "no_capture"),
        ("hook_failed", "hook_failed: as the test asked"),
    ],
)
def test_a_lasting_fault_fails_its_sample_alone_after_a_few_attempts(bench, fault, reason):
    bench.limits = Limits(backoff=0.1, heartbeat=0.02, silence=0.2, silence_per_token=0.0, attempts=2)
    bench.max_failed = 0.2
    keys = bench.write(prompts(6))
    bench.server.always[keys[2]] = fault
    bench.extract()
    failed = bench.rows().pop(2)
    assert (failed["status"], failed["file"], failed["checksum"], failed["bytes"], failed["published"]) == (
        "failed",
        None,
        None,
        0,
        None,
    )
    assert re.search(reason, failed["reason"])
    assert [row["status"] for row in bench.rows()].count("ok") == 5
    assert not bench.holds(keys[2])
    assert bench.server.keys_requested().count(keys[2]) == 2


def test_a_refused_sample_is_not_tried_twice_and_keeps_the_servers_words(bench):
    bench.max_failed = 0.5
    keys = bench.write(prompts(4))
    bench.server.always[keys[1]] = "400"
    bench.extract()
    assert bench.reasons()[keys[1]] == "refused: HTTP 400: the input is bad"
    assert bench.server.keys_requested().count(keys[1]) == 1


def test_more_failures_than_allowed_stop_the_chunk_and_keep_what_was_published(bench):
    keys = bench.write(prompts(4))
    bench.server.always[keys[1]] = "400"
    with pytest.raises(
        UserError, match=r"1 samples failed: 1 refused; sample 1: refused.*max_failed = 0 allows 0 of 4"
    ):
        bench.extract()
    assert not bench.results.manifest(CHUNK).exists()
    assert [bench.holds(key) for key in keys] == [True, False, True, True]
    bench.server.always.clear()
    bench.server.requests.clear()
    bench.extract()  # only what failed is tried again
    assert bench.server.keys_requested() == [keys[1]]
    assert set(bench.reasons().values()) == {None}


def test_failed_samples_are_tried_again_by_the_next_run(bench):
    bench.max_failed = 0.5
    keys = bench.write(prompts(4))
    bench.server.always[keys[1]] = "400"
    bench.extract()
    bench.server.always.clear()
    bench.server.requests.clear()
    bench.extract()
    assert bench.server.keys_requested() == [keys[1]]
    assert set(bench.reasons().values()) == {None}


def test_a_server_killed_again_and_again_from_outside_costs_no_sample(bench):
    keys = bench.write(prompts(40))
    bench.server.answer_delay = 0.005
    for number in (5, 17, 29):
        bench.server.faults[keys[number]] = ["kill"]
    bench.extract()
    assert set(bench.reasons().values()) == {None}
    assert bench.server.starts == 4
    assert bench.runs()[-1]["server_restarts"] == 3


def test_a_sample_that_kills_the_server_is_isolated_and_the_rest_go_on(bench):
    bench.max_failed = 0.1
    keys = bench.write(prompts(20))
    poison = keys[7]
    bench.server.always[poison] = "kill"
    bench.server.answer_delay = 0.01
    bench.extract()
    reasons = bench.reasons()
    assert reasons.pop(poison).startswith("kills_server: the server died 2 times while it had this sample alone")
    assert set(reasons.values()) == {None}
    counts = {key: bench.server.keys_requested().count(key) for key in keys}
    assert max(count for key, count in counts.items() if key != poison) <= 2
    assert counts[poison] == 3


def test_a_sample_that_kills_the_server_is_not_tried_again_in_the_same_run(bench, monkeypatch):
    """Snakemake tries a failed job again, and each attempt would cost three starts of the server."""
    keys = bench.write(prompts(6))
    bench.server.always[keys[2]] = "kill"
    bench.server.answer_delay = 0.01
    requests = []
    for run_id in ("one", "one", "two"):
        monkeypatch.setenv("HIDDEN_STATES_RUN_ID", run_id)
        with pytest.raises(UserError, match="1 kills_server; sample 2: kills_server: the server died 2 times"):
            bench.extract()
        requests.append(bench.server.keys_requested().count(keys[2]))
    assert requests[0] == requests[1] < requests[2]
    bench.server.always.clear()
    monkeypatch.setenv("HIDDEN_STATES_RUN_ID", "three")
    bench.extract()
    assert set(bench.reasons().values()) == {None}


def test_two_samples_side_by_side_that_kill_the_server_are_both_isolated(bench):
    bench.max_failed = 0.2
    keys = bench.write(prompts(12))
    bench.server.always |= {keys[0]: "kill", keys[1]: "kill"}
    bench.server.answer_delay = 0.01
    bench.extract()
    failed = {key for key, reason in bench.reasons().items() if reason}
    assert failed == {keys[0], keys[1]}


def test_a_server_that_dies_whatever_it_is_sent_stops_the_run_with_its_last_words(bench):
    keys = bench.write(prompts(12))
    bench.server.always |= dict.fromkeys(keys, "kill")
    with pytest.raises(UserError, match=r"lost 5 times without finishing a sample.*exit code -9"):
        bench.extract()
    assert not bench.results.manifest(CHUNK).exists()


def test_a_server_that_hangs_is_restarted_and_no_sample_is_lost(bench):
    keys = bench.write(prompts(10))
    bench.server.faults[keys[3]] = ["hang"]
    bench.server.faults[keys[4]] = ["hang"]
    bench.extract()
    assert bench.server.starts == 2
    assert set(bench.reasons().values()) == {None}


def test_a_slow_server_is_not_taken_for_a_hanging_one(bench):
    bench.concurrency = 2
    keys = bench.write(prompts(8))
    # Always something in flight, answers well within the limit of 0.6 s, all together far beyond it.
    bench.server.answer_delay = 0.3
    bench.server.answer_delays[keys[0]] = 0.15
    bench.extract()
    assert bench.server.starts == 1


def test_files_that_come_long_after_the_answer_are_waited_for(bench):
    bench.server.write_delay = 0.4
    keys = bench.write(prompts(10))
    bench.extract()
    assert sorted(bench.server.keys_requested()) == sorted(keys)


def test_a_server_that_dies_between_answer_and_file_is_not_blamed_on_the_sample(bench):
    bench.concurrency = 1
    bench.limits = replace(QUICK, deaths_alone=1)
    keys = bench.write(prompts(1))
    bench.server.write_delay = 5
    threading.Timer(0.3, lambda: (setattr(bench.server, "write_delay", 0.0), bench.server.kill())).start()
    bench.extract()
    assert set(bench.reasons().values()) == {None}
    assert bench.server.starts == 2
    assert bench.server.keys_requested() == keys * 2


def test_full_capture_buffers_halve_the_requests_in_flight(bench, caplog):
    bench.concurrency = 8
    bench.server.answer_delay = 0.01
    keys = bench.write(prompts(30))
    for key in keys[:8]:
        bench.server.faults[key] = ["stalled"]
    bench.extract()
    assert set(bench.reasons().values()) == {None}
    assert "4 requests at a time now" in caplog.text
    assert "2 requests at a time now" not in caplog.text  # they stalled together: that counts once


def test_a_full_disk_stops_the_run_and_says_how_much_is_needed(bench):
    keys = bench.write(prompts(10))
    bench.server.always[keys[6]] = "disk_full"
    with pytest.raises(UserError, match=r"no space left \(as the test asked\).*still to be computed need [\d,]+ bytes"):
        bench.extract()
    published = [key for key in keys if bench.holds(key)]
    assert published
    assert not bench.results.manifest(CHUNK).exists()
    bench.server.always.clear()
    bench.server.requests.clear()
    bench.extract()
    assert not set(published) & set(bench.server.keys_requested())
    assert set(bench.reasons().values()) == {None}


@pytest.mark.parametrize(
    "target", ["hidden_states.store.store.Store.publish", "hidden_states.extraction.chunk.write_manifest"]
)
def test_no_space_in_the_store_or_for_the_manifest_is_explained_too(bench, monkeypatch, target):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    bench.write(prompts(3))
    monkeypatch.setattr(target, full)
    with pytest.raises(UserError, match="no space left"):
        bench.extract()


def test_a_dump_directory_without_room_for_a_report_is_taken_for_full(bench, monkeypatch):
    """The plug-in can write neither the state nor why there is none."""
    (key,) = bench.write(prompts(1))
    bench.server.always[key] = "lost"
    monkeypatch.setattr(attempt, "NO_ROOM_SECONDS", 0.1)
    monkeypatch.setattr(attempt, "free_bytes", lambda folder: 0 if folder == bench.server.dump else 1 << 40)
    with pytest.raises(UserError, match=r"no space left \(.*no room for what it captured\).*need [\d,]+ bytes"):
        bench.extract()


def test_a_server_that_does_not_come_up_again_ends_the_run_with_that_error(bench, monkeypatch):
    def restart():
        raise UserError("the server did not start; its log says so and so")

    keys = bench.write(prompts(3))
    bench.server.restart()
    monkeypatch.setattr(bench.server, "restart", restart)
    bench.server.faults[keys[0]] = ["kill"]
    with pytest.raises(UserError, match="its log says so and so"):
        bench.extract()


def test_time_allowed_for_silence_grows_with_the_request_and_backoff_is_bounded():
    limits = Limits()
    assert limits.longest_silence(65536) > limits.longest_silence(1) > 120
    assert [limits.wait_before(number) for number in (1, 2, 3, 10)] == [2, 4, 8, 30]
    assert QUICK.deaths_in_a_row > 2 * QUICK.deaths_alone


def test_a_file_that_takes_the_place_of_one_being_checked_is_not_published(bench, monkeypatch):
    """A second request under the rid of a finished one: its file gets the same name in the dump directory."""
    check = attempt.check_state_file
    intruders = []

    def check_and_intrude(file, *arguments):
        checked = check(file, *arguments)
        intruders.append(file.with_name(file.name.split(".")[0] + ".safetensors"))
        intruders[-1].write_bytes(b"the states of another prompt")
        return checked

    monkeypatch.setattr(attempt, "check_state_file", check_and_intrude)
    keys = bench.write(prompts(3))
    bench.extract()
    assert len(intruders) == 3
    assert sorted(bench.server.keys_requested()) == sorted(keys), "none was asked for twice"
    for key in keys:
        assert check(bench.store.path(key), None).header.key == key
    assert list(bench.server.dump.iterdir()) == []
