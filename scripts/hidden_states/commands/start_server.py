"""``hidden-states start-server``: a server that is proven to capture rightly, and a record of what it is."""

import argparse
import json
import logging
from typing import Any

from hidden_states.layout import Results

log = logging.getLogger(__name__)

HELP = "Start the server, check what it captures, and write server/ready.json; it stays warm for the chunks."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.files import write_json
    from hidden_states.server.lease import lease
    from hidden_states.server.specification import build

    specification = build(settings, results)
    longest = json.loads(results.summary.read_text(encoding="utf-8"))["longest"]
    # What it was before is of no account: this step says what the server is from now on.
    results.ready.unlink(missing_ok=True)
    with lease(settings, results, specification, longest) as server:
        write_json(results.ready, server.ready)
    log.info("the server is ready: %s", results.ready)
