"""``hidden-states extract``: one chunk, from its token file to its manifest."""

import argparse
from functools import partial
from typing import Any

from hidden_states.layout import Results

HELP = "Compute the hidden states of one chunk that the store does not hold yet, and write the chunk's manifest."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk", required=True, help="name of the chunk, such as 0003")


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.extraction.chunk import extract_chunk
    from hidden_states.server.lease import lease
    from hidden_states.server.specification import build
    from hidden_states.store.disk_plan import check_free_space

    specification = build(settings, results)
    extract_chunk(
        settings,
        results,
        arguments.chunk,
        specification,
        lease=partial(lease, settings, results, specification),
        check_space=partial(check_free_space, results),
    )
