"""``hidden-states verify-chunk``: the gate that a chunk passes before it is packaged."""

import argparse
import logging
from typing import Any

from hidden_states.layout import Results

HELP = "Check one chunk's manifest against its token file and the headers of its states; write results/qa/CHUNK.json."

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk", required=True, help="name of the chunk, such as 0003")


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    from hidden_states.verification.structure import verify_chunk

    record = verify_chunk(results, arguments.chunk)
    failed = record.samples - record.ok
    log.info("chunk %s: %d states in order, %d samples failed", record.chunk, record.ok, failed)
