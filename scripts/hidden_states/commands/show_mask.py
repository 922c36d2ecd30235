"""``hidden-states show-mask``: one conversation with its loss mask."""

import argparse
import os
from typing import Any

from hidden_states.layout import Results

HELP = (
    "Print one row of the conversations as the model gets it, with what has loss in colour (NO_COLOR=1: in brackets), "
    "or why it is rejected."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row", type=int, required=True, metavar="N", help="number of the row in its file, from 0")
    parser.add_argument(
        "--file", help="which input, as conversations.files has it, or the end of its name (default: the first)"
    )


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.conversations.shown_row import shown_row
    from hidden_states.settings import model_folder

    colour = not os.environ.get("NO_COLOR")
    print(shown_row(settings, model_folder(settings, results), arguments.row, arguments.file, colour))
