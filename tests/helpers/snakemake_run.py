"""Running the real Snakemake in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import yaml


class Workflow:
    """The workflow in ``folder``, with the settings in ``config``."""

    def __init__(self, repository: Path, folder: Path, tools: Path | None) -> None:
        self.repository, self.folder = repository, folder
        self.environment = dict(os.environ)
        path = [str(tools)] if tools else []
        self.environment["PATH"] = os.pathsep.join([*path, str(Path(sys.executable).parent), os.environ["PATH"]])
        self.config: dict = {
            "model": {"path": "demo"},
            "conversations": {"files": [str(repository / "resources" / "conversations" / "demo.jsonl")]},
            "extraction": {"chunks": 4},
        }

    def command(self, *arguments: str) -> list[str]:
        config = self.folder / "my.yaml"
        config.write_text(yaml.safe_dump(self.config))
        # --configfile takes every word up to the next option, so it comes last.
        where = ["--directory", str(self.folder), "--configfile", str(config)]
        return [sys.executable, "-m", "snakemake", "--cores", "4", *arguments, *where]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.repository,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(*arguments, **variables)
        output, _ = process.communicate(timeout=1800)
        return process.returncode, output

    def call(self, verb: str, *arguments: str) -> str:
        """What ``hidden-states`` prints for a verb on the results of this run; it must succeed."""
        command = [sys.executable, "-m", "hidden_states.cli", verb, "--results", str(self.folder / "results")]
        done = subprocess.run([*command, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def calls(self) -> list[str]:
        """What was called since the last time, where ``hidden-states`` is the fake."""
        log = self.folder / "calls.log"
        lines = log.read_text().splitlines() if log.is_file() else []
        log.unlink(missing_ok=True)
        return lines
