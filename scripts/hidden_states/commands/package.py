"""``hidden-states package``: make the datasets that trainers read."""

import argparse
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results

HELP = "Package tokens and states as datasets for trainers, by hard links; only what differs is written."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    """Package every format of ``packaging.formats``."""
    from hidden_states.packaging.speculators import FORMAT, package
    from hidden_states.settings import model_folder

    for name in settings["packaging"]["formats"]:
        if name != FORMAT:
            raise UserError(f"config key packaging.formats: {name} is not available yet; use [{FORMAT}].")
    package(settings, results, model_folder(settings, results))
