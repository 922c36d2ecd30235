"""Changing a manifest that is there."""

from collections.abc import Callable
from typing import Any

from hidden_states.layout import Results
from hidden_states.store.manifest import read_manifest, write_manifest


def edit_manifest(results: Results, chunk: str, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Let ``edit`` change the rows in place."""
    rows = read_manifest(results.manifest(chunk)).to_pylist()
    edit(rows)
    write_manifest(results.manifest(chunk), rows)
