"""``hidden-states tokenize``: from conversations to token files."""

import argparse
from typing import Any

from hidden_states.layout import Results

HELP = "Turn the conversations into token ids and loss masks, one file a chunk, and say why rows are left out."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    """Write ``results/tokens/``; the totals are logged and in ``summary.json``."""
    from hidden_states.conversations.corpus import tokenize_corpus
    from hidden_states.settings import model_folder

    tokenize_corpus(settings, model_folder(settings, results), results)
