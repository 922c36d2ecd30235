"""speculators 0.4.0 itself, in an environment of its own, reads a v1 dataset and trains on it (on the CPU)."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.finished_run import Run, Sample
from hidden_states.layers import resolve_layers
from safetensors.torch import load_file

pytestmark = pytest.mark.faults

PYTHON = Path(f"{sys.prefix}-v1") / "bin" / "python"
NUM_SAMPLES = 12


@pytest.fixture(scope="module")
def run(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A dataset of the demo model's states, computed with Transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()
    layers = resolve_layers("speculators-v1", model.config.num_hidden_layers)
    final = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: final.append(inputs[0]))
    random = np.random.default_rng(7)
    samples = []
    for _ in range(NUM_SAMPLES):
        ids = random.integers(0, model.config.vocab_size, int(random.integers(20, 90)))
        with torch.no_grad():
            hidden = model(torch.tensor(ids)[None], output_hidden_states=True).hidden_states
        states = torch.stack([*(hidden[layer][0] for layer in layers), final.pop()[0]], dim=1).to(torch.bfloat16)
        mask = [0] * 8 + [1] * (len(ids) - 8)
        samples.append(Sample([int(value) for value in ids], mask, states.view(torch.uint16).numpy()))
    shape = {"model": demo_model, "vocabulary": model.config.vocab_size, "format_name": "speculators-v1"}
    run = Run(tmp_path_factory.mktemp("v1"), [samples[:7], samples[7:]], layers, **shape).write()
    run.package()
    return run


@pytest.fixture(scope="module")
def read(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """What the release's own reader and trainer made of it."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-v1` and `make test-faults` set that environment up")
    out = tmp_path_factory.mktemp("read")
    script = Path(__file__).parents[1] / "helpers" / "train_with_speculators_v1.py"
    command = [str(PYTHON), "-I", str(script), str(run.folder), str(run.model), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), out


def test_its_reader_gets_the_states_ids_and_masks_of_every_row(run, read):
    """The release moves ids, masks and final states on by one against the other states, as its drafter wants them."""
    found, out = read
    samples = [sample for chunk in run.chunks for sample in chunk]
    assert found["lengths"] == {f"data_{row}": len(sample.ids) for row, sample in enumerate(samples)}
    for row, sample in enumerate(samples):
        item = load_file(out / f"data_{row}.safetensors")
        states = torch.from_numpy(sample.states).view(torch.bfloat16).float()
        assert item["input_ids"].tolist() == sample.ids[1:]
        assert item["loss_mask"].tolist() == sample.mask[1:]
        assert torch.equal(item["hidden_states"], states[:-1, :-1].flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], states[1:, -1])


def test_its_drafter_takes_training_steps(read):
    found, _ = read
    assert all(math.isfinite(value) for value in [*found["losses"], *found["gradients"]])
    assert min(found["gradients"]) > 0 and found["moved"] > 0
    first, last = sum(found["losses"][:3]), sum(found["losses"][-3:])
    assert last < 0.9 * first
    print(f"loss {first / 3:.2f} → {last / 3:.2f} in {len(found['losses'])} steps")
