"""A chunk, a store and a server whose faults the test chooses."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from helpers.fake_server import FakeServer
from helpers.states import FINGERPRINT, HIDDEN_SIZE, LAYERS, header_for
from helpers.token_files import write_token_file
from hidden_states.extraction.chunk import extract_chunk
from hidden_states.extraction.journal import read_journal
from hidden_states.extraction.limits import Limits
from hidden_states.layout import Results
from hidden_states.store.manifest import read_manifest
from hidden_states.store.store import Store

SPECIFICATION = SimpleNamespace(
    fingerprint=FINGERPRINT, layers=LAYERS, final="pre_norm", dtype="BF16", hidden_size=HIDDEN_SIZE
)
QUICK = Limits(backoff=0.15, heartbeat=0.02, silence=0.6, silence_per_token=0.0)
CHUNK = "0003"


@dataclass
class Bench:
    """One results folder with a chunk of prompts."""

    results: Results
    server: FakeServer
    concurrency: int = 4
    max_failed: float = 0.0
    limits: Limits = QUICK
    space_asked: list[int] = field(default_factory=list)

    def write(self, prompts: list[list[int]], chunk: str = CHUNK) -> list[str]:
        write_token_file(self.results, chunk, prompts)
        return [header_for(ids).key for ids in prompts]

    def extract(self, chunk: str = CHUNK, lease=None) -> None:
        settings = {"extraction": {"concurrency": self.concurrency, "max_failed": self.max_failed}}
        extract_chunk(
            settings,
            self.results,
            chunk,
            SPECIFICATION,
            lease or self.server.lease,
            lambda states, dump: self.space_asked.append(states),
            self.limits,
        )

    def rows(self, chunk: str = CHUNK) -> list[dict]:
        return read_manifest(self.results.manifest(chunk)).to_pylist()

    def reasons(self) -> dict[str, str | None]:
        return {row["key"]: row["reason"] for row in self.rows()}

    def runs(self) -> list[dict]:
        return read_journal(self.results.journal(CHUNK))[1]

    @property
    def store(self) -> Store:
        return Store(self.results, FINGERPRINT)

    def holds(self, key: str) -> bool:
        return self.store.path(key).exists()


def prompts(count: int) -> list[list[int]]:
    """Different prompts of 2 to 8 tokens."""
    return [[100 + number, *range(number % 7 + 1)] for number in range(count)]
