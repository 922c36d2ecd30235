"""Each fault planted in the capture of a real server makes the self-check refuse it, and say what it looks like."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.checked_server import CheckedServer, checked_server
from helpers.planted_captures import FAULTS
from hidden_states.errors import UserError

pytestmark = pytest.mark.server

LOOKS_LIKE = {
    "layer-one-off": "a layer off by one: slot 0 .L = 2. is nearest to layer 3",
    "slots-swapped": "slots swapped.*slot 0 .L = 2. is nearest to layer 4; slot 1 .L = 4. is nearest to layer 2",
    "final-in-slot": "slots swapped.*slot 0 .L = 2. is nearest to the final state, pre-norm",
    "earlier-final": "one slot in place of another: slot 3 .L = 8. is nearest to layer 5",
    "post-norm": "the wrong side of the final norm",
    "normed-twice": "The figures look like the state after the final norm, normed once more",
    "rows-shifted": "The figures look like rows shifted by one",
    "rows-of-another": "is also a row of another prompt",
    "stale-rows": "is also a row of",
    "row-short": "rows_missing.*prefix cache",
    "zeroed-row": "zero_row: row .* is all zeros",
    "nan": "not_finite: row .* is infinite or not a number",
}
WITHOUT_REFERENCE = {
    "final-in-slot": "The figures look like the final state in slot 0",
    "earlier-final": "The figures look like the state of another layer in place of the final one",
    "post-norm": "The figures look like the state after the final norm in place of the one before it",
    "normed-twice": "The figures look like the state after the final norm, normed once more",
    "rows-shifted": "The figures look like rows shifted by one: each state one row too late",
    "rows-of-another": "is also a row of another prompt",
    "stale-rows": "is also a row of",
}


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedServer]:
    with checked_server(demo_model, tmp_path_factory.mktemp("self_check")) as started:
        yield started


def test_a_right_capture_passes(server):
    figures = server.check()
    print(figures)
    assert figures["proven"]
    assert figures["replay"]["agreement"] >= 0.99
    assert all(slot["median"] < 0.02 for slot in figures["reference"]["slots"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_and_named(server, fault):
    with pytest.raises(UserError, match=LOOKS_LIKE[fault]) as refused:
        server.check(fault)
    print(f"{fault}: {refused.value}")


@pytest.mark.parametrize("fault", WITHOUT_REFERENCE)
def test_replay_alone_refuses_what_concerns_the_final_state(server, fault):
    with pytest.raises(UserError, match=WITHOUT_REFERENCE[fault]) as refused:
        server.check(fault, reference="never")
    print(f"{fault}, without a reference: {refused.value}")
    assert server.check(reference="never")["proven"]


def test_the_server_passes_again_when_no_fault_is_planted(server):
    assert server.check()["proven"]
