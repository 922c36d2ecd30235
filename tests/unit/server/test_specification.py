"""What a server must be: its fingerprint, the settings that are refused, its command line."""

import dataclasses
from pathlib import Path

import pytest
from hidden_states.errors import UserError
from hidden_states.server.arguments import normalise, to_flags
from hidden_states.server.command import command, environment
from hidden_states.server.devices import slot_devices, visible_devices
from hidden_states.server.specification import build


def test_the_specification_follows_the_model_and_the_settings(settings, results):
    made = build(settings, results)
    assert (made.layers, made.final, made.dtype) == ((2, 4, 5), "pre_norm", "BF16")
    assert made.bytes_per_token == 4 * 16 * 2
    assert build(settings, results) == made


@pytest.mark.parametrize(
    "change",
    [
        ("capture", "layers", [1, 2]),
        ("capture", "final", "post_norm"),
        ("server", "arguments", {"dtype": "float32"}),
        ("server", "arguments", {"chunked_prefill_size": 64}),
    ],
)
def test_what_changes_the_states_changes_the_fingerprint(settings, results, change):
    before = build(settings, results).fingerprint
    section, key, value = change
    settings[section][key] = value
    assert build(settings, results).fingerprint != before


def test_other_weights_change_the_fingerprint(settings, results):
    before = build(settings, results).fingerprint
    weights = Path(settings["model"]["path"]) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert build(settings, results).fingerprint != before


@pytest.mark.parametrize("arguments", [{"log_level": "debug"}, {"max_total_tokens": 4096}, {"enable_metrics": True}])
def test_neutral_arguments_make_another_server_but_the_same_states(settings, results, arguments):
    before = build(settings, results)
    settings["server"]["arguments"] = arguments
    after = build(settings, results)
    assert after.fingerprint == before.fingerprint
    assert after.server_hash != before.server_hash


def test_two_names_of_an_argument_are_one(settings, results):
    made = []
    for name in ("tp", "tp_size", "tensor_parallel_size", "tensor-parallel-size"):
        settings["server"]["arguments"] = {name: 2}
        made.append(build(settings, results).fingerprint)
    assert len(set(made)) == 1
    with pytest.raises(UserError, match="the same"):
        normalise({"tp": 2, "tp_size": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("disable_radix_cache", False),
        ("pipeline_parallel_size", 2),
        ("pp-size", 2),
        ("dp_size", 2),
        ("enable_dp_attention", True),
        ("speculative_algorithm", "EAGLE3"),
        ("enable_mixed_chunk", True),
        ("enable_mixed", True),
        ("enable_two_batch_overlap", True),
        ("enable_layernorm_sp", True),
        ("enable_attn_tp_input_scattered", True),
        ("allow_auto_truncate", True),
        ("disable_prefill_cuda_graph", False),
        ("cuda_graph_bs_prefill", [1, 2]),
        ("host", "0.0.0.0"),
        ("port", 30000),
        ("api_key", "x"),
        ("model_path", "x"),
        ("trust_remote_code", True),
        ("config", "x.yaml"),
    ],
)
def test_an_argument_that_breaks_the_capture_or_is_ours_is_refused_by_name(name, value):
    with pytest.raises(UserError, match=rf"server\.arguments\.{name} "):
        normalise({name: value})


@pytest.mark.parametrize(
    "arguments", [{"pp_size": 1}, {"disable_radix_cache": True}, {"enable_mixed_chunk": False}, {"model_impl": "auto"}]
)
def test_an_argument_that_breaks_nothing_is_taken(arguments):
    assert normalise(arguments) == {name: value for name, value in arguments.items() if value is not False}


def test_arguments_become_flags():
    arguments = {"tp_size": 8, "enable_metrics": True, "a": False, "b": None, "cuda_graph_bs_decode": [1, 2]}
    assert to_flags(arguments) == ["--tp-size", "8", "--enable-metrics", "--cuda-graph-bs-decode", "1", "2"]


def test_the_command_turns_off_what_breaks_the_capture(settings, results):
    made = command(build(settings, results))
    assert {"--disable-radix-cache", "--skip-server-warmup", "--sleep-on-idle"} <= set(made)
    assert made[made.index("--host") + 1] == "127.0.0.1"
    assert not {"--port", "--api-key"} & set(made)
    on_cuda = command(dataclasses.replace(build(settings, results), device="cuda"))
    assert "--disable-prefill-cuda-graph" in on_cuda


def test_a_launcher_gets_the_plug_in_by_pythonpath(settings, results, tmp_path):
    made = dataclasses.replace(build(settings, results), launcher=("apptainer", "exec", "sglang.sif"))
    assert command(made)[:5] == ["apptainer", "exec", "sglang.sif", "python3", "-m"]
    path = environment(made, results, tmp_path, ("cpu-0",), "hs-x-")["PYTHONPATH"].split(":")
    assert (Path(path[0]) / "sgl_kernel").exists(), "on the CPU the stand-in comes first"
    assert (Path(path[1]) / "hidden_states" / "capture" / "plugin.py").is_file()
    assert len(list(Path(path[1]).glob("hidden_states-*.dist-info/entry_points.txt"))) == 1


def test_nothing_but_the_loopback_interface_is_used_between_the_processes(settings, results, tmp_path):
    variables = environment(build(settings, results), results, tmp_path / "dump", ("cpu-0",), "hs-x-")
    assert variables["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == f"file://{tmp_path}/dump/capture.rendezvous"
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("name", ["what?", "run #2"])
def test_a_folder_that_cannot_stand_in_a_url_is_named(settings, results, tmp_path, name):
    with pytest.raises(UserError, match="has a \\? or a #.*another --directory"):
        environment(build(settings, results), results, tmp_path / name, ("cpu-0",), "hs-x-")


def test_slots_index_into_the_visible_devices(monkeypatch):
    monkeypatch.setattr("hidden_states.server.devices.visible_devices", lambda: ["4", "5", "6", "7"])
    assert slot_devices("cuda", 1, 2) == ["cuda-6", "cuda-7"]
    assert slot_devices("cpu", 1, 1) == ["cpu-1"]
    with pytest.raises(UserError, match="only 4 are visible"):
        slot_devices("cuda", 2, 2)


def test_without_a_device_there_is_nothing_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == []
