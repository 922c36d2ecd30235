"""A recorder without a server: its requests, batches and model are stand-ins, its files are real."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from hidden_states.capture.model import CapturedModel, FinalState
from hidden_states.capture.recorder import Recorder
from hidden_states.capture.settings import CaptureSettings
from hidden_states.store.checksums import check_state_file
from safetensors.torch import load_file

LAYERS = (2, 4)
HIDDEN_SIZE = 4
NUM_LAYERS = 8


class Forwards:
    """Drives a recorder as the server does. The state of position p in slot s is the number 16 * s + p % 16."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.dump, self.num_layers, self.layers = settings.dump, NUM_LAYERS, settings.layers
        self.final = FinalState()
        model = CapturedModel("Stub", NUM_LAYERS, HIDDEN_SIZE, torch.bfloat16, torch.device("cpu"), [], [], self.final)
        self.recorder = Recorder(settings, model)
        self.packed, self.hooks_run = False, True

    def request(self, rid: str, num_tokens: int) -> SimpleNamespace:
        return SimpleNamespace(rid=rid, origin_input_ids=list(range(num_tokens)), to_finish=None, output_ids=[])

    def run(self, *rows: tuple[SimpleNamespace, int, int], extend: bool = True) -> str:
        """One forward of ``rows``: (request, first position, number of rows); returns what the server would get."""
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_extend=lambda: extend),
            reqs=[req for req, _, _ in rows],
            prefix_lens=[first for _, first, _ in rows],
            extend_lens=[count for _, _, count in rows],
        )
        positions = torch.cat([torch.arange(first, first + count) for _, first, count in rows]) % 16

        def compute(worker: object, batch: object) -> str:
            aux = [self._states(slot, positions) for slot in range(self._num_aux())]
            if self.hooks_run:
                self.final.pre_norm = self._states(len(self.layers), positions)
                self.final.post_norm = -self.final.pre_norm
            return self.recorder.logits(forward, None, None, None, None, None, self._pack(aux))

        def forward(self, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states=None) -> str:
            return "logits"

        return self.recorder.forward_batch(compute, None, batch)

    def wait_for(self, name: str) -> Path:
        path, end = self.dump / name, time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < end, f"{name} did not appear; there are {[p.name for p in self.dump.iterdir()]}"
            time.sleep(0.01)
        return path

    def _num_aux(self) -> int:
        return len([layer for layer in self.layers if layer < self.num_layers])

    def _states(self, slot: int, positions: torch.Tensor) -> torch.Tensor:
        # No state is all zeros: that is refused.
        return (16.0 * slot + 1 + positions).repeat(HIDDEN_SIZE, 1).T.contiguous().to(torch.bfloat16)

    def _pack(self, aux: list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        return torch.cat(aux, dim=-1) if self.packed else aux


def expected_states(num_tokens: int, num_slots: int = len(LAYERS) + 1) -> torch.Tensor:
    """float32 [num_tokens, num_slots, HIDDEN_SIZE]"""
    slots = 16.0 * torch.arange(num_slots)[None, :, None] + 1 + torch.arange(num_tokens)[:, None, None] % 16
    return slots.expand(-1, -1, HIDDEN_SIZE)


def assert_captured(forwards: Forwards, rid: str, num_tokens: int, num_slots: int = 3) -> None:
    path = forwards.wait_for(f"{rid}.safetensors")
    check_state_file(path, None)
    content = load_file(path)
    assert content["token_ids"].tolist() == list(range(num_tokens))
    assert torch.equal(content["hidden_states"].float(), expected_states(num_tokens, num_slots))


def reason(forwards: Forwards, rid: str) -> str:
    return json.loads(forwards.wait_for(f"{rid}.error.json").read_text())["reason"]


def names(forwards: Forwards) -> set[str]:
    return {path.name for path in forwards.dump.iterdir()} - {"capture_stats.json"}
