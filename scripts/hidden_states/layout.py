"""Where everything of one run lies, below its results folder."""

from dataclasses import dataclass
from pathlib import Path


def chunk_name(index: int) -> str:
    """Name of the chunk with this index: ``0000``, ``0001``, …"""
    return f"{index:04d}"


@dataclass(frozen=True)
class Results:
    """Paths below ``root``, usually ``results``; nothing is created here."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held with flock by the one run of this directory."""
        return self.root / ".lock"

    @property
    def config(self) -> Path:
        """The resolved configuration of the last run, with every default filled in."""
        return self.root / "config.json"

    @property
    def demo_model(self) -> Path:
        return self.root / "demo_model"

    @property
    def rejected(self) -> Path:
        return self.root / "tokens" / "rejected.parquet"

    @property
    def summary(self) -> Path:
        return self.root / "tokens" / "summary.json"

    def tokens(self, chunk: str) -> Path:
        return self.root / "tokens" / f"{chunk}.parquet"

    def token_copy(self, chunk: str) -> Path:
        """A second copy of a token file: a damaged one is made whole from it, without tokenizing anything again."""
        return self.root / "tokens" / "copy" / f"{chunk}.parquet"

    @property
    def ready(self) -> Path:
        return self.root / "server" / "ready.json"

    @property
    def server(self) -> Path:
        return self.root / "server"

    @property
    def dump(self) -> Path:
        """Where the server writes; wiped before every start."""
        return self.root / "dump"

    @property
    def states(self) -> Path:
        """The content-addressed store: ``states/<fingerprint>/<ab>/<key>.safetensors``."""
        return self.root / "states"

    @property
    def chunks(self) -> Path:
        return self.root / "chunks"

    def manifest(self, chunk: str) -> Path:
        return self.chunks / chunk / "manifest.parquet"

    def journal(self, chunk: str) -> Path:
        """What was published for this chunk, one line a sample; survives a killed job."""
        return self.chunks / chunk / "journal.jsonl"

    @property
    def qa(self) -> Path:
        return self.root / "qa"

    def chunk_qa(self, chunk: str) -> Path:
        return self.qa / f"{chunk}.json"

    def ticket(self, name: str) -> Path:
        """Damage found by ``verify``: of a chunk (its name) or of the ``dataset``."""
        return self.qa / "damage" / f"{name}.json"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    def dataset(self, format_name: str) -> Path:
        return self.root / "dataset" / format_name

    @property
    def report(self) -> Path:
        return self.root / "report"
