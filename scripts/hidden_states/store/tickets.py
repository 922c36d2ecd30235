"""Tickets: what ``verify`` found damaged, for extract and package to repair.

One JSON file a chunk and one for the dataset. A ticket is rewritten when there is new
damage and never deleted, so that the step that takes it as an optional input runs again exactly when it must.

| ticket | content besides ``time`` |
|---|---|
| ``{chunk}.json`` | ``keys``: {key: reason}; empty when only the manifest or the token file is damaged |
| ``dataset.json`` | ``files``: {path below the results: reason} to make again, ``store``: likewise, to move away |
"""

import json
from datetime import UTC, datetime
from typing import Any

from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.layout import Results

DATASET = "dataset"


def write_ticket(results: Results, name: str, **content: dict[str, str]) -> None:
    """Record damage under ``name``: a chunk (``keys=``) or DATASET (``files=``, ``store=``)."""
    write_json(results.ticket(name), {"time": datetime.now(UTC).isoformat(), **content})


def read_ticket(results: Results, name: str) -> dict[str, Any]:
    """The last ticket of ``name``, or an empty dict when nothing was ever found damaged. Raises UserError."""
    path = results.ticket(name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"ticket {path} cannot be read ({error}); run `snakemake verify` to write it anew.") from None
    return content


def damaged_keys(results: Results, chunk: str) -> dict[str, str]:
    """Keys of a chunk that the last ticket names, with the reasons."""
    return read_ticket(results, chunk).get("keys", {})
