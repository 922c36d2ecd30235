"""One run per directory: an flock on ``results/.lock``, which the kernel frees however the run ends."""

import fcntl
import os
import secrets

from hidden_states.errors import UserError
from hidden_states.layout import Results

RUN_PID = "HIDDEN_STATES_RUN_PID"
"""Environment variable with the process that holds the lock; its jobs end when it does."""
RUN_ID = "HIDDEN_STATES_RUN_ID"
"""Environment variable with a random name of the run, which its jobs share; pids come again, in containers soon."""


class RunLock:
    """Held from ``take`` to the end of this process."""

    def __init__(self, results: Results) -> None:
        self._path = results.lock
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self, what: str) -> None:
        """Take the lock for ``what``, or raise UserError naming the process that has it. Children do not inherit it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise UserError(
                f"{what} refused: {holder} is at work in {self._path.parent.resolve()}. Wait until it is finished, "
                "or use another --directory."
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{what} (process {os.getpid()})\n".encode(), 0)
        self._descriptor = descriptor
        os.environ[RUN_PID], os.environ[RUN_ID] = str(os.getpid()), secrets.token_hex(8)
