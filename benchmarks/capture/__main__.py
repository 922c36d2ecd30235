"""Measure the capture against the same server without it, and merge what was measured into a JSON file.

Each part of the matrix can be measured by itself; what is not measured this time stays as it was.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hidden_states.files import write_json
from hidden_states.layout import Results

from capture.baselines import return_hidden_states, transformers_and_save
from capture.drive import drive_capture, drive_plain
from capture.limits import measure_limits
from capture.server import running, specification
from capture.shapes import MIXED, SHAPES, make_model, prompts

MAIN_LENGTH = "2048"
WARM_UP_SECONDS = 8.0
SEED = 7
SINKS = ("memory", "disk")
STORAGES = ("bfloat16", "float8")
BASELINES = ("transformers", "return_hidden_states")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m capture", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["llama-8b", "deepseek-v3-8-layers"], choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="*", default=[MAIN_LENGTH, "512", "8192", MIXED])
    parser.add_argument("--sinks", nargs="*", default=list(SINKS), choices=SINKS)
    parser.add_argument("--storages", nargs="*", default=list(STORAGES), choices=STORAGES)
    parser.add_argument("--baselines", nargs="*", default=[], choices=BASELINES)
    parser.add_argument("--limits", action="store_true", help="measure the machine's own limits too")
    parser.add_argument("--reuse-plain", action="store_true", help="compare with the plain rates of an earlier call")
    parser.add_argument("--seconds", type=float, default=60, help="at 2048 tokens")
    parser.add_argument("--short-seconds", type=float, default=20, help="at the other lengths")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--buffer-gib", type=float, default=4.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--memory-folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk-folder", type=Path, default=Path("."))
    parser.add_argument("--logs", type=Path, default=Path("."), help="where the servers' logs go")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "capture_h200.json")
    Benchmark(parser.parse_args()).run()


class Benchmark:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._content = self._read()

    def run(self) -> None:
        options = self._options
        options.logs.mkdir(parents=True, exist_ok=True)
        if options.limits:
            self._save({"limits": measure_limits(options.disk_folder)})
        for shape in options.shapes:
            with tempfile.TemporaryDirectory(prefix="bench-model-") as folder:
                self._shape(shape, make_model(shape, Path(folder)))

    def _shape(self, shape: str, model: Path) -> None:
        options = self._options
        if not options.reuse_plain:
            self._plain(shape, model)
        for storage in options.storages:
            for sink in options.sinks:
                lengths = options.lengths if (sink, storage) == ("memory", "bfloat16") else [MAIN_LENGTH]
                if lengths := [length for length in lengths if length in options.lengths]:
                    self._capture(shape, model, storage, sink, lengths)
        for name in options.baselines:
            self._baseline(name, shape, model)

    def _plain(self, shape: str, model: Path) -> None:
        spec = self._specification(shape, model, "bfloat16")

        def measure(results: Results) -> None:
            with running(spec, results, self._options.logs / f"{shape}-plain.log", capture=False) as server:
                for length in self._options.lengths:
                    drive = self._driver(shape, length, lambda *a, s=server: drive_plain(s, *a))
                    self._add({"kind": "plain", "model_shape": shape, "prompt_tokens": length}, drive() | server.peak)

        self._in_folder(self._options.memory_folder, measure)

    def _capture(self, shape: str, model: Path, storage: str, sink: str, lengths: list[str]) -> None:
        spec = self._specification(shape, model, storage)
        place = self._options.memory_folder if sink == "memory" else self._options.disk_folder

        def measure(results: Results) -> None:
            log = self._options.logs / f"{shape}-{storage}-{sink}.log"
            with running(spec, results, log, capture=True) as server:
                for length in lengths:
                    server.forget_peaks()
                    drive = self._driver(shape, length, lambda *a, s=server: drive_capture(s, spec, results, *a))
                    figures = drive() | server.peak
                    identity = {
                        "kind": "product",
                        "model_shape": shape,
                        "storage": storage,
                        "sink": sink,
                        "prompt_tokens": length,
                    }
                    self._add(identity, self._compared(identity, figures, spec.bytes_per_token))

        self._in_folder(place, measure)

    def _baseline(self, name: str, shape: str, model: Path) -> None:
        seconds = self._options.short_seconds
        spec = self._specification(shape, model, "bfloat16")
        ids = prompts(shape, MAIN_LENGTH, SEED)

        def measure(results: Results) -> None:
            if name == "transformers":
                results.root.mkdir(parents=True, exist_ok=True)
                figures = transformers_and_save(shape, spec.layers, ids, seconds, results.root)
            else:
                log = self._options.logs / f"{shape}-{name}.log"
                with running(spec, results, log, capture=False, enable_return_hidden_states=True) as server:
                    figures = return_hidden_states(server, ids, seconds, 4)
            identity = {"kind": "baseline", "name": name, "model_shape": shape, "prompt_tokens": MAIN_LENGTH}
            rate = figures.pop("tokens_per_second")
            plain = self._plain_rate(shape, MAIN_LENGTH)
            self._add(
                identity,
                figures
                | {
                    "capture_tokens_per_second": rate,
                    "plain_tokens_per_second": plain,
                    "ratio": round(rate / plain, 4) if plain else None,
                },
            )

        self._in_folder(self._options.disk_folder, measure)

    def _driver(self, shape: str, length: str, drive: Callable[..., dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        """``drive`` after a warm-up with other prompts of the same length."""
        options = self._options
        seconds = options.seconds if length == MAIN_LENGTH else options.short_seconds

        def run() -> dict[str, Any]:
            drive(prompts(shape, length, SEED + 1), min(WARM_UP_SECONDS, seconds), options.concurrency)
            return drive(prompts(shape, length, SEED), seconds, options.concurrency)

        return run

    def _compared(self, identity: dict[str, Any], figures: dict[str, Any], bytes_per_token: int) -> dict[str, Any]:
        """``ratio``: to the plain server; ``attainable_ratio``: to what the disk allows, where that is less."""
        plain, rate = self._plain_rate(identity["model_shape"], identity["prompt_tokens"]), figures["tokens_per_second"]
        rest = {name: value for name, value in figures.items() if name != "tokens_per_second"}
        compared = {
            "bytes_per_token": bytes_per_token,
            "plain_tokens_per_second": plain,
            "capture_tokens_per_second": rate,
            "ratio": round(rate / plain, 4) if plain else None,
            "disk_bytes_per_second": round(rate * bytes_per_token),
            "hook_share": round(figures["hook_seconds"] / figures["seconds"], 5),
        }
        disk = self._content.get("limits", {}).get("durable_write_bytes_per_second")
        if identity["sink"] == "disk" and disk and plain:
            attainable = min(plain, max(disk.values()) / bytes_per_token)
            compared |= {"attainable_ratio": round(rate / attainable, 4)}
        return compared | rest

    def _plain_rate(self, shape: str, length: str) -> float | None:
        for run in self._content["runs"]:
            if (run["kind"], run["model_shape"], run["prompt_tokens"]) == ("plain", shape, length):
                return run["tokens_per_second"]
        return None

    def _specification(self, shape: str, model: Path, storage: str) -> Any:
        return specification(model, shape, self._options.device, storage, self._options.buffer_gib)

    def _in_folder(self, place: Path, measure: Callable[[Results], None]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
        try:
            measure(Results(folder / "results"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _add(self, identity: dict[str, Any], figures: dict[str, Any]) -> None:
        """Put one run in the place of an earlier one of the same identity."""
        runs = [run for run in self._content["runs"] if any(run.get(k) != v for k, v in identity.items())]
        self._save({"runs": [*runs, identity | figures]})
        print(json.dumps(identity | figures), flush=True)

    def _save(self, new: dict[str, Any]) -> None:
        self._content |= new
        self._content |= {
            "machine": _machine(),
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {name: version(name) for name in ("sglang", "torch", "transformers")}
            | {"python": platform.python_version()},
            "command": " ".join(["python -m capture", *sys.argv[1:]]),
        }
        write_json(self._options.output, self._content)

    def _read(self) -> dict[str, Any]:
        if self._options.output.exists():
            return json.loads(self._options.output.read_text())
        return {"runs": []}


def _machine() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
