"""Which files ``conversations.files`` means."""

import glob
from collections.abc import Iterable
from pathlib import Path

from hidden_states.errors import UserError

KEY = "config key conversations.files"


def expand_files(patterns: Iterable[str]) -> list[Path]:
    """The files in the order of the setting, those of a pattern by name; a file named twice is read once.

    Raises UserError for a file that does not exist, a folder, or a pattern without a match.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        if Path(pattern).exists():
            matches = [pattern]
        else:
            matches = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
        if not matches:
            kind = "no file matches" if glob.has_magic(pattern) else "there is no file"
            raise UserError(f"{KEY}: {kind} {pattern}.")
        for match in matches:
            if Path(match).is_dir():
                raise UserError(f"{KEY}: {match} is a folder; name its files, such as {match}/*.jsonl.")
            files[Path(match)] = None
    return list(files)
