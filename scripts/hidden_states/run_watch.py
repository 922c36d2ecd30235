"""A job ends when the run it belongs to ends, even when the run was killed and could not tell it."""

import os
import select
import threading

from hidden_states.run_lock import RUN_PID

EXIT_CODE = 143


def end_with_the_run() -> None:
    """Watch the process named by ``HIDDEN_STATES_RUN_PID`` and end this one, at once, when it is gone.

    Every step may be killed at any moment and loses nothing, so nothing is tidied up.
    """
    pid = os.environ.get(RUN_PID, "")
    if not pid.isdigit():
        return
    try:
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        os._exit(EXIT_CODE)
    except OSError:
        return  # a kernel without pidfd (before 5.3), or a run on another host

    def wait() -> None:
        select.select([descriptor], [], [])
        os._exit(EXIT_CODE)

    threading.Thread(target=wait, name="run-watch", daemon=True).start()
