"""A real SGLang server with the capture plug-in, and what its states are compared with.

It runs on the CPU, or where ``HIDDEN_STATES_TEST_DEVICE=cuda`` says so on the first GPU.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hidden_states.capture import cpu
from hidden_states.server.arguments import to_flags
from hidden_states.store.checksums import check_state_file
from safetensors.torch import load_file

PREFIX = "hs-test-"
FINGERPRINT = "ab" * 16
START_SECONDS = 300
DEVICE = os.environ.get("HIDDEN_STATES_TEST_DEVICE", "cpu")
DEVICE_ARGUMENTS = {
    "cpu": {"device": "cpu", "attention_backend": "torch_native", "sleep_on_idle": True},
    "cuda": {
        "device": "cuda",
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_prefill_cuda_graph": True,
        "disable_decode_cuda_graph": True,
        "mem_fraction_static": 0.3,
    },
}


@dataclass
class CaptureServer:
    """``dump``: where the plug-in writes; ``log``: what the server printed."""

    url: str
    dump: Path
    log: Path

    def generate(self, ids: list[int], rid: str, **fields: Any) -> dict[str, Any]:
        """Send one request; the reply, or raises urllib.error.HTTPError."""
        body = {"input_ids": ids, "rid": rid, "sampling_params": {"max_new_tokens": 0}} | fields
        request = urllib.request.Request(
            f"{self.url}/generate", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.loads(reply.read())

    def generate_at_once(self, prompts: dict[str, list[int]], **fields: Any) -> dict[str, dict[str, Any]]:
        """Send ``prompts``, by rid, at the same time."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            replies = pool.map(lambda item: self.generate(item[1], item[0], **fields), prompts.items())
            return dict(zip(prompts, replies, strict=True))

    def wait_for(self, name: str, seconds: float = 20) -> Path:
        """A file of the dump directory, once it is there."""
        path, end = self.dump / name, time.monotonic() + seconds
        while not path.exists():
            assert time.monotonic() < end, f"{name} did not appear; there are {sorted(self.names())}"
            time.sleep(0.05)
        return path

    def states(self, rid: str) -> torch.Tensor:
        """The captured states of ``rid``, checked against its header, as float32 [num_tokens, slots, hidden_size]."""
        path = self.wait_for(f"{rid}.safetensors")
        check_state_file(path, None)
        return load_file(path)["hidden_states"].float()

    def error(self, rid: str) -> dict[str, str]:
        return json.loads(self.wait_for(f"{rid}.error.json").read_text())

    def names(self) -> set[str]:
        return {path.name for path in self.dump.iterdir()}


@contextmanager
def capture_server(
    model: Path,
    folder: Path,
    layers: tuple[int, ...],
    python_path: tuple[Path, ...] = (),
    environment: dict[str, str] | None = None,
    arguments: dict[str, Any] | None = None,
) -> Iterator[CaptureServer]:
    """Start a server on ``model``, with further ``arguments`` of SGLang; it is ended with all its processes."""
    dump, log = folder / "dump", folder / "server.log"
    dump.mkdir(parents=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    paths = [*([cpu.pythonpath()] if DEVICE == "cpu" else []), *python_path]
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SGLANG_USE_CPU_ENGINE": "1" if DEVICE == "cpu" else "0",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "SGLANG_HS_DUMP_DIR": str(dump),
        "SGLANG_HS_FINGERPRINT": FINGERPRINT,
        "SGLANG_HS_LAYERS": ",".join(str(layer) for layer in layers),
        "SGLANG_HS_RID_PREFIX": PREFIX,
        **(environment or {}),
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *to_flags(DEVICE_ARGUMENTS[DEVICE] | (arguments or {}))]
    command += ["--max-total-tokens", "65536", "--chunked-prefill-size", "128", "--disable-radix-cache"]
    command += ["--skip-server-warmup"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = CaptureServer(f"http://127.0.0.1:{port}", dump, log)
    try:
        _wait_until_healthy(server, process)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_healthy(server: CaptureServer, process: subprocess.Popen) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5)
            return
        except OSError:
            tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-40:])
            assert process.poll() is None, f"the server ended:\n{tail}"
            assert time.monotonic() < end, f"the server did not get healthy:\n{tail}"
            time.sleep(0.5)


class Reference:
    """Transformers' forward in float32 of the same weights."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
        self._norm: dict[str, torch.Tensor] = {}
        self._model.model.norm.register_forward_hook(self._keep)

    def slots(self, ids: list[int], layers: tuple[int, ...], final: str = "pre_norm") -> torch.Tensor:
        """float32 [num_tokens, len(layers) + 1, hidden_size]; layer n is the state before the final norm."""
        with torch.no_grad():
            output = self._model(torch.tensor([ids]), output_hidden_states=True)
        num_layers = self._model.config.num_hidden_layers
        slots = [output.hidden_states[layer] if layer < num_layers else self._norm["pre_norm"] for layer in layers]
        return torch.stack([slot[0] for slot in (*slots, self._norm[final])], dim=1)

    def _keep(self, module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self._norm = {"pre_norm": inputs[0], "post_norm": output}


def relative_errors(states: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Length of the difference over length of the reference, for every token and slot: [num_tokens, slots]."""
    return (states - reference).norm(dim=-1) / reference.norm(dim=-1)


def random_prompts(lengths: tuple[int, ...], vocabulary: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]
