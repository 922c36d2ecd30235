"""What is wrong, where, and which ticket makes ``all`` repair it."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hidden_states.layout import Results
from hidden_states.store.tickets import DATASET, write_ticket

SHOWN = 20


@dataclass
class Findings:
    """Collected by all checks of one ``verify``. Only what is damaged is kept in memory.

    ``notes`` are worth knowing and no error: orphans, left-over chunks, samples that failed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """Key → what is wrong with its state."""
    chunk_tickets: dict[str, dict[str, str]] = field(default_factory=dict)
    dataset_files: dict[str, str] = field(default_factory=dict)
    store_files: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, where: object, what: object) -> None:
        """Something wrong of this ``kind``, a plural such as "damaged states"."""
        self.counts[kind] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{where}: {what}")

    def chunk(self, kind: str, chunk: str, where: object, what: object) -> None:
        """A chunk has to be gone through again; its states may be in order."""
        self.add(kind, where, what)
        self.chunk_tickets.setdefault(chunk, {})

    def state(self, chunk: str, key: str, where: object, what: object) -> None:
        """The state of ``key`` has to be computed anew; ``chunk`` is one of those that need it."""
        if key not in self.keys:
            self.add("damaged or missing states", where, what)
            self.keys[key] = str(what)
        self.chunk_tickets.setdefault(chunk, {})[key] = self.keys[key]

    def token_file(self, chunk: str, where: object, what: object) -> None:
        """Extracting the chunk puts the copy of its token file in its place."""
        self.chunk("damaged or missing token files", chunk, where, what)

    def step_again(self, kind: str, path: Path, problem: object) -> None:
        """``path`` is something that only its step can make again, which runs when there is none."""
        if path.exists():
            self.add(kind, path, f"{problem}; delete it: then `all` makes it again")
        else:
            self.add(kind, path, "missing: `all` makes it again")

    def dataset_file(self, name: str, where: object, what: object) -> None:
        """``name`` is the path below the results of a file to make, or link, again."""
        self.add("damaged or missing dataset files", where, what)
        self.dataset_files[name] = str(what)

    def store_file(self, name: str, where: object, what: object) -> None:
        """``name`` is the path below the results of a file to move away."""
        self.add("foreign or broken files in the store", where, what)
        self.store_files[name] = str(what)

    def write_tickets(self, results: Results) -> None:
        """One ticket for each thing that has new damage; the others stay as they are."""
        for chunk, keys in sorted(self.chunk_tickets.items()):
            write_ticket(results, chunk, keys=keys)
        if self.dataset_files or self.store_files:
            write_ticket(results, DATASET, files=self.dataset_files, store=self.store_files)

    def lines(self) -> list[str]:
        """The first of what is wrong, then counts by kind."""
        more = sum(self.counts.values()) - len(self.shown)
        lines = [f"  {line}" for line in self.shown] + ([f"  … and {more:,} more"] if more else [])
        return [*lines, "in all: " + ", ".join(f"{count:,} {kind}" for kind, count in self.counts.most_common())]
