"""``hidden-states stop-server``: stop the server of this run."""

import argparse
import logging
from typing import Any

from hidden_states.layout import Results

log = logging.getLogger(__name__)

HELP = "Stop the servers on this host that belong to this run."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.server.lease import stop_servers

    if count := stop_servers(results):
        log.info("%d server(s) stopped", count)
