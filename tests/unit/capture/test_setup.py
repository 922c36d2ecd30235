"""Switching the plug-in on: settings, families, the model's layers, and the folder for PYTHONPATH."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hidden_states.capture import cpu, plugin
from hidden_states.capture.export import export_plugin
from hidden_states.capture.families import setter_argument
from hidden_states.capture.model import prepare_model
from hidden_states.capture.settings import CaptureSettings

VARIABLES = {
    "SGLANG_HS_DUMP_DIR": "dump",
    "SGLANG_HS_FINGERPRINT": "ab" * 16,
    "SGLANG_HS_LAYERS": "2,30,58",
    "SGLANG_HS_RID_PREFIX": "hs-1a-",
}


class Llama(torch.nn.Module):
    """The parts of a model that the plug-in touches; the setter adds one, as Llama's does."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
        self.model.norm = torch.nn.LayerNorm(4)
        self.model.layers_to_capture = []

    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.model.layers_to_capture = [number + 1 for number in ids]


LlamaForCausalLM = type("LlamaForCausalLM", (Llama,), {})


def with_variables(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in (VARIABLES | changes).items():
        monkeypatch.setenv(name, value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with_variables(monkeypatch)
    settings = CaptureSettings.from_environment()
    assert (settings.layers, settings.num_slots, settings.final) == ((2, 30, 58), 4, "pre_norm")
    assert (settings.buffer_bytes, settings.wait_seconds) == (4 << 30, 60)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_HS_FINGERPRINT", "../x"),
        ("SGLANG_HS_FINGERPRINT", ""),
        ("SGLANG_HS_LAYERS", "2,x"),
        ("SGLANG_HS_LAYERS", "4,2"),
        ("SGLANG_HS_LAYERS", "0,2"),
        ("SGLANG_HS_RID_PREFIX", ""),
        ("SGLANG_HS_RID_PREFIX", "a/"),
        ("SGLANG_HS_RID_PREFIX", "capture"),
        ("SGLANG_HS_FINAL", "normed"),
        ("SGLANG_HS_STORAGE", "int4"),
        ("SGLANG_HS_BUFFER_BYTES", "4G"),
        ("SGLANG_HS_WAIT_SECONDS", "300"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with_variables(monkeypatch, **{name: value})
    with pytest.raises(ValueError, match=name):
        CaptureSettings.from_environment()


@pytest.mark.parametrize(
    ("model_class", "layers", "argument"),
    [
        ("LlamaForCausalLM", [2, 4, 5], [1, 3, 4]),
        ("LlamaForCausalLM", [1], [0]),
        ("DeepseekV3ForCausalLM", [2, 30, 58], [2, 30, 58]),
        ("KimiK25ForConditionalGeneration", [3, 31, 59], [3, 31, 59]),
        ("GptOssForCausalLM", [2, 12, 21], [1, 11, 20]),
    ],
)
def test_the_setters_argument_depends_on_the_family(model_class: str, layers: list[int], argument: list[int]) -> None:
    assert setter_argument(model_class, layers, 61) == argument


def test_a_family_that_is_not_known_is_refused_and_not_guessed() -> None:
    with pytest.raises(ValueError, match=r"how NewForCausalLM numbers its layers is not known"):
        setter_argument("NewForCausalLM", [2], 8)


def test_a_family_whose_states_are_known_to_be_wrong_is_refused_and_says_how() -> None:
    with pytest.raises(
        ValueError, match=r"Gemma3ForCausalLM cannot be captured: SGLang hands out what the layer before"
    ):
        setter_argument("Gemma3ForCausalLM", [2], 8)


def test_layer_1_of_deepseek_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 1 cannot be reached"):
        setter_argument("DeepseekV3ForCausalLM", [1, 4], 8)


def test_a_model_is_asked_for_its_layers_and_its_norm_is_seen() -> None:
    model = LlamaForCausalLM()
    captured = prepare_model(model, (2, 5, 8))
    assert (captured.setter_argument, captured.layers_read_back) == ([1, 4], [2, 5])
    states = torch.randn(3, 4)
    normed = model.model.norm(states)
    assert captured.final.pre_norm is states and captured.final.post_norm is normed


def test_layers_read_back_must_be_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "set_eagle3_layers_to_capture", lambda self, ids: None)
    with pytest.raises(ValueError, match=r"asked LlamaForCausalLM for layers \[2, 5\] .* read back \[\]"):
        prepare_model(LlamaForCausalLM(), (2, 5))


def test_a_model_without_the_setter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Linear cannot capture layers"):
        prepare_model(torch.nn.Linear(2, 2), (2,))


def runner(model: torch.nn.Module, **fields: object) -> SimpleNamespace:
    return SimpleNamespace(model=model, device="meta", dtype=torch.bfloat16, **fields)


def test_a_failed_setup_is_announced_and_does_not_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_variables(monkeypatch, SGLANG_HS_DUMP_DIR=str(tmp_path), SGLANG_HS_LAYERS="2,4")
    capture = plugin.Capture()
    capture.after_load_model(None, runner(torch.nn.Linear(2, 2)))
    content = json.loads((tmp_path / "capture.error.json").read_text())
    assert content["reason"] == "ValueError" and "Linear cannot capture layers" in content["detail"]
    assert capture.around_logits(lambda value: value, 5) == 5
    assert not (tmp_path / "capture.json").exists()


def test_a_drafters_model_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_variables(monkeypatch, SGLANG_HS_DUMP_DIR=str(tmp_path))
    plugin.Capture().after_load_model(None, runner(torch.nn.Linear(2, 2), is_draft_worker=True))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_registered_outside_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's main process and the detokenizer load plug-ins too."""
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    monkeypatch.delenv("SGLANG_HS_DUMP_DIR", raising=False)
    plugin.register()
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "dump")
    plugin.register()


def test_the_exported_folder_is_found_through_pythonpath(tmp_path: Path) -> None:
    folder = export_plugin(tmp_path / "plugin")
    assert export_plugin(folder) == folder
    code = (
        "from importlib.metadata import entry_points\n"
        "found = [e for e in entry_points(group='sglang.srt.plugins') if e.name == 'hidden_states_capture']\n"
        "import hidden_states, hidden_states.capture.recorder\n"
        "from hidden_states.capture import cpu\n"
        "assert (cpu.pythonpath() / 'sgl_kernel').is_dir()\n"
        "print(len(found), found[0].load().__module__, hidden_states.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": str(folder)}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.split()
    assert output == ["1", "hidden_states.capture.plugin", str(folder / "hidden_states" / "__init__.py")]


def test_the_stand_in_kernels_say_that_they_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(cpu.pythonpath()))
    monkeypatch.delitem(sys.modules, "sgl_kernel", raising=False)
    import sgl_kernel

    assert Path(sgl_kernel.__file__).parent.parent == cpu.pythonpath()
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.rmsnorm was called"):
        sgl_kernel.rmsnorm()
    monkeypatch.delitem(sys.modules, "sgl_kernel")
