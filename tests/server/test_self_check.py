"""Each fault planted in the capture of a real server makes the self-check refuse it, and say what it looks like."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.capture_server import FINGERPRINT, PREFIX, CaptureServer, capture_server, random_prompts
from helpers.planted_captures import FAULTS, planted_captures
from helpers.token_files import write_token_file
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server.self_check import run_self_check

pytestmark = pytest.mark.server

LAYERS = (2, 4, 5)
VOCABULARY = 1000
PREFILL_CHUNK = 128
LENGTHS = (90, 40, 33, 150, 260, 20, 61)

LOOKS_LIKE = {
    "layer-one-off": "a layer off by one: slot 0 .L = 2. is nearest to layer 3",
    "slots-swapped": "slots swapped.*slot 0 .L = 2. is nearest to layer 4; slot 1 .L = 4. is nearest to layer 2",
    "final-in-slot": "slots swapped.*slot 0 .L = 2. is nearest to the final state, pre-norm",
    "post-norm": "the wrong side of the final norm",
    "normed-twice": "differs from a Transformers forward",
    "rows-shifted": "rows shifted by one|is also a row of",
    "rows-of-another": "is also a row of another prompt",
    "stale-rows": "is also a row of",
    "row-short": "rows_missing.*prefix cache",
    "zeroed-row": "zero_row: row .* is all zeros",
    "nan": "not_finite: row .* is infinite or not a number",
}
WITHOUT_REFERENCE = {
    "final-in-slot": "The figures look like the final state in slot 0",
    "post-norm": "The figures look like the state after the final norm in place of the one before it",
    "normed-twice": "of [0-9]* tokens, 95% are needed",
    "rows-shifted": "is also a row of|one row too late",
    "rows-of-another": "is also a row of another prompt",
    "stale-rows": "is also a row of",
}


class Checked:
    """A server under test; ``fault`` is planted while its self-check runs."""

    def __init__(self, server: CaptureServer, model: Path, folder: Path) -> None:
        self._control, self._results = folder / "fault", Results(folder / "results")
        self._prompts = random_prompts(LENGTHS, VOCABULARY, seed=9)
        write_token_file(self._results, "0000", self._prompts)
        specification = SimpleNamespace(
            model=model, fingerprint=FINGERPRINT, layers=LAYERS, final="pre_norm", dtype="BF16", hidden_size=128
        )
        self._server: Any = SimpleNamespace(
            url=server.url,
            headers={},
            rid_prefix=PREFIX,
            dump=server.dump,
            specification=specification,
            max_req_input_len=4000,
            alive=lambda: True,
        )

    def run(self, fault: str, reference: str = "auto") -> dict[str, Any]:
        settings = {
            "extraction": {"chunks": 1},
            "model": {"trust_remote_code": False},
            "self_check": {"prompts": 8, "reference": reference, "min_replay_agreement": 0.95},
        }
        self._control.write_text(fault)
        try:
            return run_self_check(self._server, settings, self._results, {"chunked_prefill_size": PREFILL_CHUNK})
        finally:
            self._control.write_text("")
            for path in self._server.dump.glob(f"{PREFIX}*"):
                path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def checked(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checked]:
    yield from start(demo_model, tmp_path_factory.mktemp("self_check"))


def start(model: Path, folder: Path) -> Iterator[Checked]:
    plugin = planted_captures(folder / "planted")
    variables = {"PLANTED_CAPTURE": str(folder / "fault")}
    with capture_server(model, folder, LAYERS, python_path=(plugin,), environment=variables) as server:
        yield Checked(server, model, folder)


def test_a_right_capture_passes(checked):
    figures = checked.run("")
    print(figures)
    assert figures["proven"]
    assert figures["replay"]["agreement"] >= 0.99
    assert all(slot["median"] < 0.02 for slot in figures["reference"]["slots"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused_and_named(checked, fault):
    with pytest.raises(UserError, match=LOOKS_LIKE[fault]) as refused:
        checked.run(fault)
    print(f"{fault}: {refused.value}")
    assert checked.run("")["proven"]


@pytest.mark.parametrize("fault", WITHOUT_REFERENCE)
def test_replay_alone_refuses_what_concerns_the_final_state(checked, fault):
    with pytest.raises(UserError, match=WITHOUT_REFERENCE[fault]) as refused:
        checked.run(fault, reference="never")
    print(f"{fault}: {refused.value}")
