"""A real server under self-check, in whose capture a fault can be planted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.capture_server import FINGERPRINT, PREFIX, CaptureServer, capture_server, random_prompts
from helpers.planted_captures import planted_captures
from helpers.token_files import write_token_file
from hidden_states.checkpoint import Checkpoint
from hidden_states.layout import Results
from hidden_states.server.self_check import run_self_check

LAYERS = (2, 4, 5)
PREFILL_CHUNK = 128
LENGTHS = (90, 40, 33, 150, 260, 20, 61)


class CheckedServer:
    """``check`` is the product's self-check, with the prompts that it chooses from a corpus of ``LENGTHS``."""

    def __init__(self, server: CaptureServer, model: Path, folder: Path) -> None:
        config = Checkpoint(model).config
        self._control, self._results = folder / "fault", Results(folder / "results")
        write_token_file(self._results, "0000", random_prompts(LENGTHS, config.vocab_size, seed=9))
        specification = SimpleNamespace(
            model=model,
            fingerprint=FINGERPRINT,
            layers=LAYERS,
            final="pre_norm",
            dtype="BF16",
            hidden_size=config.hidden_size,
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

    def check(self, fault: str = "", reference: str = "auto") -> dict[str, Any]:
        """The figures of the self-check with ``fault`` planted (see ``planted_captures.FAULTS``; "" for none).

        ``reference``: the config key. Raises UserError, as the product does, when the capture is refused."""
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


@contextmanager
def checked_server(model: Path, folder: Path) -> Iterator[CheckedServer]:
    """Start a server on ``model``, in ``folder``."""
    plugin = planted_captures(folder / "planted")
    variables = {"PLANTED_CAPTURE": str(folder / "fault")}
    with capture_server(model, folder, LAYERS, python_path=(plugin,), environment=variables) as server:
        yield CheckedServer(server, model, folder)
