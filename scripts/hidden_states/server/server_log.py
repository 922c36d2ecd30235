"""The server's log: everything it prints, without its key."""

import os
import threading
from pathlib import Path

REPLACEMENT = b"<key>"


class LogCopy:
    """Copies a pipe into ``file`` (mode 0600, emptied first) in a thread, until the last writer closes it.

    SGLang prints its arguments when it starts, the key among them, so lines are looked through before they are kept.
    """

    def __init__(self, pipe: int, file: Path, secret: str) -> None:
        self._pipe, self._secret = pipe, secret.encode()
        file.unlink(missing_ok=True)  # an earlier one may have another mode
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._thread = threading.Thread(target=self._copy, name="server-log", daemon=True)
        self._thread.start()

    def drain(self, patience_sec: float = 2.0) -> None:
        """Wait until all that was printed is in the file; not for long, as a stray child may hold the pipe."""
        self._thread.join(patience_sec)

    def _copy(self) -> None:
        rest = b""
        while chunk := os.read(self._pipe, 1 << 16):
            text = rest + chunk
            # Whole lines only, or a key could be cut in two; a progress bar's lines end with \r.
            cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            self._write(text[:cut])
            rest = text[cut:]
        self._write(rest)
        os.close(self._file)

    def _write(self, text: bytes) -> None:
        text = text.replace(self._secret, REPLACEMENT)
        while text:
            try:
                text = text[os.write(self._file, text) :]
            except OSError:
                return  # a full disk cuts the log; the pipe must be emptied all the same, or the server stands still
