"""Norm weights near one hide the side of the norm from the most likely tokens; the self-check still sees it, on a real
server and without a reference."""

from pathlib import Path

import pytest
import torch
from helpers.checked_server import checked_server
from helpers.llama import make_llama
from hidden_states.errors import UserError
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.faults, pytest.mark.server]

AFTER = "The figures look like the state after the final norm in place of the one before it"
TWICE = "The figures look like the state after the final norm, normed once more"


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        pytest.param(0.02, {"post-norm": AFTER, "normed-twice": TWICE}, id="nearly one"),
        pytest.param(0.0, {"post-norm": AFTER, "normed-twice": AFTER}, id="one"),
    ],
)
def test_a_norm_that_hardly_scales_hides_nothing(tmp_path: Path, spread: float, expected: dict[str, str]) -> None:
    model = make_llama(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    torch.manual_seed(3)
    weight = tensors["model.norm.weight"]
    tensors["model.norm.weight"] = (1 + spread * torch.randn(weight.shape)).to(weight.dtype)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with checked_server(model, tmp_path / "server") as server:
        print(server.check(reference="never"))
        for fault, words in (expected | {"earlier-final": "the capture is wrong"}).items():
            with pytest.raises(UserError, match=words) as refused:
                server.check(fault, reference="never")
            print(f"{fault}, norm weights of 1 ± {spread}: {refused.value}")
        assert server.check(reference="never")["proven"]
