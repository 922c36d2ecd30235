"""What a server must be: model, layers, engine and arguments, with the fingerprint that they give.

Cheap to build: neither torch nor SGLang is imported.
"""

import importlib.metadata
import shlex
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hidden_states.capture import PLUGIN_FORMAT_VERSION
from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.layers import resolve_layers
from hidden_states.layout import Results
from hidden_states.server import arguments as server_arguments
from hidden_states.server.devices import choose_device
from hidden_states.settings import model_folder
from hidden_states.store.fingerprint import fingerprint
from hidden_states.store.state_file import DTYPES, bytes_per_token

CPU_ARGUMENTS = {"attention_backend": "torch_native", "max_total_tokens": 65536, "sleep_on_idle": True}
"""Defaults on the CPU: without a limit SGLang takes most of the memory for its cache, and it spins when idle."""

VERSION_PROGRAM = "import importlib.metadata as m; print(m.version('sglang'))"
VERSION_TIMEOUT_SEC = 120


@dataclass(frozen=True)
class ServerSpecification:
    """``layers``: auxiliary layers L, ascending. ``dtype``: of the stored states, as safetensors names it.
    ``arguments``: SGLang's, by its own names, with our defaults. ``identity``: everything that decides what a state
    is; its hash is ``fingerprint``."""

    model: Path
    trust_remote_code: bool
    device: str
    tensor_parallel_size: int
    layers: tuple[int, ...]
    final: str
    storage: str
    dtype: str
    num_layers: int
    hidden_size: int
    launcher: tuple[str, ...]
    arguments: dict[str, Any]
    buffer_bytes: int
    sglang_version: str
    identity: dict[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row of a state file, all slots, with its scale where it has one."""
        return bytes_per_token(len(self.layers) + 1, self.hidden_size, self.dtype)

    @cached_property
    def server_hash(self) -> str:
        """Equal for servers that can stand in for one another: the fingerprint and how the server is started."""
        return fingerprint(
            {
                "fingerprint": self.fingerprint,
                "model": str(self.model),
                "trust_remote_code": self.trust_remote_code,
                "launcher": self.launcher,
                "arguments": self.arguments,
                "buffer_bytes": self.buffer_bytes,
            }
        )


def build(settings: dict[str, Any], results: Results) -> ServerSpecification:
    """The server that these settings ask for.

    Raises UserError for a model that cannot be read, layers it does not have, an argument that breaks the capture, or
    an SGLang that is not installed.
    """
    server, capture = settings["server"], settings["capture"]
    storage = capture["storage"]
    arguments = server_arguments.normalise(server["arguments"])
    tensor_parallel_size = _tensor_parallel_size(arguments)
    device = choose_device(server["device"])
    if device == "cpu":
        arguments = CPU_ARGUMENTS | arguments
    folder = model_folder(settings, results)
    checkpoint = Checkpoint(folder)
    layers = resolve_layers(capture["layers"], checkpoint.config.num_layers)
    launcher = tuple(shlex.split(server["launcher"] or ""))
    version = _sglang_version(launcher)
    return ServerSpecification(
        model=folder.resolve(),
        trust_remote_code=settings["model"]["trust_remote_code"],
        device=device,
        tensor_parallel_size=tensor_parallel_size,
        layers=layers,
        final=capture["final"],
        storage=storage,
        dtype=DTYPES[storage],
        num_layers=checkpoint.config.num_layers,
        hidden_size=checkpoint.config.hidden_size,
        launcher=launcher,
        arguments=arguments,
        buffer_bytes=int(capture["buffer_memory_gib"] * (1 << 30)),
        sglang_version=version,
        identity={
            "engine": {
                "name": "sglang",
                "version": version,
                "plugin_format": PLUGIN_FORMAT_VERSION,
                "device": device,
                "arguments": {name: value for name, value in arguments.items() if name not in server_arguments.NEUTRAL},
            },
            "model": checkpoint.digest(results.server / "model_digest.json"),
            "layers": list(layers),
            "final": capture["final"],
            "storage": storage,
        },
    )


def _tensor_parallel_size(arguments: dict[str, Any]) -> int:
    value = arguments.get("tp_size", 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"config key server.arguments.tensor_parallel_size = {value!r}: a whole number ≥ 1 is needed.")
    return value


def _sglang_version(launcher: tuple[str, ...]) -> str:
    if not launcher:
        try:
            return importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            raise UserError(
                "SGLang is not installed in this environment; run `make setup`, or set server.launcher to a command "
                "that runs in a container with SGLang."
            ) from None
    command = [*launcher, "python3", "-c", VERSION_PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"config key server.launcher: `{shlex.join(command)}` does not run: {error}") from error
    if done.returncode != 0 or not done.stdout.split():
        raise UserError(
            f"config key server.launcher: `{shlex.join(command)}` does not tell SGLang's version "
            f"(exit code {done.returncode}): {done.stderr.strip()[-500:]}"
        )
    return done.stdout.split()[-1]
