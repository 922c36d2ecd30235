"""``hidden-states prune``: find, and with --yes remove, states that nothing refers to."""

import argparse
import os
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results

HELP = "List the states that no manifest and no token file refers to, with their bytes; with --yes remove them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="remove them; without it they are only listed")


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    if arguments.yes and results.states.is_symlink():
        raise UserError(
            f"{results.states} is a link to {results.states.resolve()}, a store that other runs may use: what they "
            "refer to cannot be seen from here. Nothing is removed. Without --yes the states are listed, one a line; "
            "remove those that you know to be nobody's."
        )
    from hidden_states.server.specification import build
    from hidden_states.store.cleanup import find_unreferenced

    found = find_unreferenced(results, build(settings, results).fingerprint)
    for path in [*(state.path for state in found.states), *found.copies, *found.chunks]:
        print(os.path.relpath(path, results.root))
    summary = f"{len(found.states)} states without a manifest, {len(found.copies)} copies and {len(found.chunks)} "
    summary += f"left-over chunks: {found.num_bytes:,} bytes"
    if found.linked_bytes:
        summary += f", of which {found.linked_bytes:,} stay on the disk as long as a dataset holds links to them"
    if arguments.yes:
        found.remove()
        print(f"Removed {summary}.")
    else:
        print(f"{summary}. To remove them: hidden-states prune --yes")
