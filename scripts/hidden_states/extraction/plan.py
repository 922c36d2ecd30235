"""What a chunk needs: which states the store has, which must be computed."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hidden_states.errors import UserError
from hidden_states.extraction.attempt import Task
from hidden_states.layout import Results
from hidden_states.store.checksums import CheckedFile, StateFileError, check_state_file
from hidden_states.store.state_file import NO_CHECKSUM, StateHeader, sample_key
from hidden_states.store.store import Store
from hidden_states.store.tickets import damaged_keys
from hidden_states.store.tokens import check_token_file, iterate_samples, make_whole, read_tokens

log = logging.getLogger(__name__)


@dataclass
class ChunkPlan:
    """``rows``: (sample_id, key) in order; the others by key, each once however often it occurs in the chunk.

    ``given_up``: samples that this run will not try again, with the reason.
    """

    tokens: Path
    rows: list[tuple[int, str]]
    expected: dict[str, StateHeader]
    stored: dict[str, CheckedFile] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, StateHeader]:
        """What is to be computed."""
        done = self.stored.keys() | self.given_up.keys()
        return {key: header for key, header in self.expected.items() if key not in done}

    def tasks(self) -> Iterator[Task]:
        """The missing samples with their token ids, read as they are needed. Raises UserError for damaged ids."""
        missing = self.missing
        for sample in iterate_samples(self.tokens):
            if (expected := missing.pop(sample.key, None)) is None:
                continue
            if sample_key(sample.token_ids.astype("<i8").tobytes()) != sample.key:
                raise UserError(
                    f"token file {self.tokens}: the ids of sample {sample.sample_id} are not those of its key; "
                    "delete the file and run `snakemake --cores 8 all` again."
                )
            yield Task(sample, expected)


def plan_chunk(results: Results, chunk: str, store: Store, specification: Any) -> ChunkPlan:
    """Look up every sample of a chunk in the store; those that its ticket names are read in full, and a broken file
    is moved to the quarantine. Raises UserError when the token file is damaged."""
    make_whole(results, chunk)
    check_token_file(results, chunk)
    table = read_tokens(results.tokens(chunk), ["sample_id", "key", "n_tokens"]).to_pydict()
    expected = {
        key: StateHeader(
            key=key,
            fingerprint=specification.fingerprint,
            layers=tuple(specification.layers),
            final=specification.final,
            dtype=specification.dtype,
            num_tokens=num_tokens,
            hidden_size=specification.hidden_size,
            checksum=NO_CHECKSUM,
        )
        for key, num_tokens in zip(table["key"], table["n_tokens"], strict=True)
    }
    plan = ChunkPlan(results.tokens(chunk), list(zip(table["sample_id"], table["key"], strict=True)), expected)
    for key, reason in damaged_keys(results, chunk).items():
        if key in expected:
            _set_aside_if_broken(store, expected[key], reason)
    for key, header in expected.items():
        if state := store.has(header):
            plan.stored[key] = state
    return plan


def _set_aside_if_broken(store: Store, expected: StateHeader, ticket: str) -> None:
    try:
        check_state_file(store.path(expected.key), expected)
    except StateFileError as error:
        if error.reason != "missing":
            store.quarantine(expected.key, str(error))
    else:
        log.info("state %s is in order now; the ticket said: %s", expected.key, ticket)
