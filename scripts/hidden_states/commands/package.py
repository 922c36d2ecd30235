"""``hidden-states package``: make the datasets that trainers read."""

import argparse
from typing import Any

from hidden_states.layout import Results

HELP = "Package tokens and states as datasets for trainers, by hard links or copies; only what differs is written."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    """Package every format of ``packaging.formats``."""
    from hidden_states.packaging import speculators, speculators_v1
    from hidden_states.packaging.inputs import read_inputs
    from hidden_states.settings import model_folder

    writers = {module.FORMAT: module.write_dataset for module in (speculators, speculators_v1)}
    inputs = read_inputs(settings, results, model_folder(settings, results))
    for name in settings["packaging"]["formats"]:
        writers[name](inputs)
