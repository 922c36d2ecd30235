"""The JSON files beside a model's weights, none of which has to be there."""

import json
from pathlib import Path
from typing import Any

from hidden_states.errors import UserError


def read_json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty when there is no such file. Raises UserError for anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} does not hold a JSON object.")
    return content
