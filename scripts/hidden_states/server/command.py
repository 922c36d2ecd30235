"""The command line and the environment of a server."""

import os
import sys
from pathlib import Path
from typing import Any

from hidden_states.capture import cpu
from hidden_states.capture.export import export_plugin
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server.arguments import to_flags
from hidden_states.server.specification import ServerSpecification

SINK_WAIT_SECONDS = 60


def command(specification: ServerSpecification) -> list[str]:
    """How the server is started, but for its port and what is in its private configuration file."""
    ours: dict[str, Any] = {
        "model_path": str(specification.model),
        "host": "127.0.0.1",
        "device": specification.device,
        "disable_radix_cache": True,
        "skip_server_warmup": True,
        "trust_remote_code": specification.trust_remote_code,
        # A replayed CUDA graph would skip the hooks; on the CPU there are none.
        "disable_prefill_cuda_graph": specification.device == "cuda",
        # Nothing is decoded here: recording its graphs would only cost time at every start, and device memory.
        "disable_decode_cuda_graph": specification.device == "cuda",
    }
    python = [*specification.launcher, "python3"] if specification.launcher else [sys.executable]
    return [*python, "-m", "sglang.launch_server", *to_flags(ours | specification.arguments)]


def environment(
    specification: ServerSpecification, results: Results, dump: Path, devices: tuple[str, ...], rid_prefix: str
) -> dict[str, str]:
    """The variables of the server process; the plug-in's own settings travel in them too.

    Raises UserError when the path of ``dump`` cannot stand in a URL.
    """
    variables = dict(os.environ)
    variables |= {
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        **_loopback_only(dump),
        "SGLANG_HS_DUMP_DIR": str(dump),
        "SGLANG_HS_FINGERPRINT": specification.fingerprint,
        "SGLANG_HS_LAYERS": ",".join(str(layer) for layer in specification.layers),
        "SGLANG_HS_FINAL": specification.final,
        "SGLANG_HS_STORAGE": specification.storage,
        "SGLANG_HS_RID_PREFIX": rid_prefix,
        "SGLANG_HS_BUFFER_BYTES": str(specification.buffer_bytes),
        "SGLANG_HS_WAIT_SECONDS": str(SINK_WAIT_SECONDS),
    }
    path: list[Path] = []
    if specification.device == "cpu":
        variables["SGLANG_USE_CPU_ENGINE"] = "1"
        path.append(cpu.pythonpath())
    else:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(device.rpartition("-")[2] for device in devices)
    if specification.launcher:
        path.append(export_plugin(results.server.resolve() / "plugin"))
    if path:
        own = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
        variables["PYTHONPATH"] = os.pathsep.join([*map(str, path), *own])
    return variables


def _loopback_only(dump: Path) -> dict[str, str]:
    """The processes of one server meet by a file and talk over the loopback interface: torch's store for their
    meeting would listen on every interface of the host, for anybody."""
    if set(str(dump)) & set("?#"):
        raise UserError(f"the path {dump} has a ? or a #, which the server cannot use; take another --directory.")
    return {
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{dump}/capture.rendezvous",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
