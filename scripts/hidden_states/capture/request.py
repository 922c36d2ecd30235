"""A request whose states are captured, and its rows in one forward."""

from dataclasses import dataclass

import numpy

from hidden_states.capture.state_writer import StateFileWriter


@dataclass(eq=False)
class Request:
    """One capture of a prompt from its first row on; a prompt begun again is another one.

    ``token_ids``: int64 [num_tokens]. ``generation``: unique in this process. ``next_position``: rows planned so far,
    ``last_seen``: ``time.monotonic`` seconds; both belong to the scheduler's thread. ``file`` belongs to the writer
    thread number ``writer``.
    """

    rid: str
    token_ids: numpy.ndarray
    generation: int
    writer: int
    next_position: int = 0
    last_seen: float = 0.0
    failed: bool = False
    file: StateFileWriter | None = None


@dataclass(frozen=True)
class Segment:
    """Rows ``begin`` to ``end`` of a forward are the next rows of ``request``."""

    request: Request
    begin: int
    end: int
