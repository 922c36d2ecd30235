"""Small JSON files in the dump directory, whole whenever they have their name."""

import json
import os
from pathlib import Path
from typing import Any


def write_small_file(path: Path, content: dict[str, Any]) -> None:
    """Write JSON readable by this user only, under a temporary name, and rename it. Raises OSError.

    Ranks may write the same name at once, so the temporary one is the process's own.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(json.dumps(content, indent=2) + "\n")
    temporary.rename(path)
