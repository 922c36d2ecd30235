"""``hidden-states demo-model``: the tiny model of the demo."""

import argparse
import logging
from typing import Any

from hidden_states.layout import Results

log = logging.getLogger(__name__)

HELP = "Make the demo's model, tiny, random and of the DeepSeek-V3 shape, with its tokenizer, in demo_model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.cli import REPOSITORY
    from hidden_states.demo_model import CONVERSATIONS, corpus, make_demo_model

    make_demo_model(results.demo_model, corpus(REPOSITORY / CONVERSATIONS))
    log.info("demo model: %s", results.demo_model)
