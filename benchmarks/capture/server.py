"""A server as the product starts it, with dummy weights, and with or without the capture."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from hidden_states.layers import resolve_layers
from hidden_states.layout import Results
from hidden_states.server.command import command, environment
from hidden_states.server.specification import CPU_ARGUMENTS, ServerSpecification
from hidden_states.store.state_file import DTYPES

from capture.shapes import SHAPES

START_SECONDS = 300
FINGERPRINT_IDENTITY = {"benchmark": "capture"}
RID_PREFIX = "hs-bench-"
ARGUMENTS = {
    "cuda": {
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "chunked_prefill_size": 8192,
        "mem_fraction_static": 0.8,
    },
    "cpu": CPU_ARGUMENTS,
}
"""What a machine without FlashAttention's kernels needs, the same with the capture and without it."""


@dataclass
class BenchServer:
    """What the product's client needs of a server. It is never restarted: a benchmark that loses its server is over."""

    url: str
    dump: Path
    process: subprocess.Popen
    peak: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    rid_prefix: str = RID_PREFIX
    max_req_input_len: int = 1 << 30

    def alive(self) -> bool:
        return self.process.poll() is None

    def restart(self) -> None:
        raise RuntimeError("the server was lost during the benchmark")

    def why_died(self) -> str:
        return f"exit code {self.process.poll()}"

    def forget_peaks(self) -> None:
        self.peak.clear()


def specification(model: Path, shape: str, device: str, storage: str, buffer_gib: float) -> ServerSpecification:
    """The product's own specification, without a checkpoint to read."""
    config = SHAPES[shape]
    return ServerSpecification(
        model=model,
        trust_remote_code=False,
        device=device,
        tensor_parallel_size=1,
        layers=resolve_layers("eagle3", config["num_hidden_layers"]),
        final="pre_norm",
        storage=storage,
        dtype=DTYPES[storage],
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        launcher=(),
        arguments=ARGUMENTS[device] | {"load_format": "dummy"},
        buffer_bytes=int(buffer_gib * (1 << 30)),
        sglang_version=version("sglang"),
        identity=FINGERPRINT_IDENTITY | {"shape": shape, "storage": storage},
    )


@contextmanager
def running(
    spec: ServerSpecification, results: Results, log: Path, capture: bool, **more: Any
) -> Iterator[BenchServer]:
    """Start the server, wait until it is healthy, end it with all its processes. ``more``: SGLang's arguments."""
    dump = results.dump / "bench"
    dump.mkdir(parents=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = environment(spec, results, dump, ("cuda-0",), RID_PREFIX)
    if not capture:
        variables = {name: value for name, value in variables.items() if not name.startswith("SGLANG_HS_")}
    line = [*command(spec), "--port", str(port)]
    for name, value in more.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with open(log, "wb") as output:
        process = subprocess.Popen(line, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    server = BenchServer(f"http://127.0.0.1:{port}", dump, process)
    try:
        _wait(server, log)
        threading.Thread(target=_watch, args=(server,), daemon=True).start()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(server: BenchServer, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5)
            return
        except OSError:
            if not server.alive() or time.monotonic() > end:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
                raise RuntimeError(f"the server did not come up:\n{tail}") from None
            time.sleep(0.5)


def _watch(server: BenchServer) -> None:
    """Keep the largest memory of the server's processes and of the device."""
    while server.alive():
        used = {"host_memory": _host_memory(server.process.pid), "device_memory": _device_memory()}
        for name, value in used.items():
            server.peak[name] = max(server.peak.get(name, 0), value)
        time.sleep(0.5)


def _host_memory(pid: int) -> int:
    """Unshared bytes of a process and its children; files in memory are not among them, pinned buffers are."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _device_memory() -> int:
    """Bytes in use on the first device; 0 where there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
