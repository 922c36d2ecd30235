"""``hidden-states report``: the figures of a run as a page."""

import argparse
import logging
from typing import Any

from hidden_states.layout import Results

log = logging.getLogger(__name__)

HELP = "Write the report of the run: report/run.html, a page with every figure, and report/run.csv, a line per chunk."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    """Gather the figures and write both files."""
    from hidden_states.files import write_text
    from hidden_states.report.figures import gather
    from hidden_states.report.page import page
    from hidden_states.report.table import chunk_csv

    name = settings["packaging"]["formats"][0]
    figures = gather(results, settings["extraction"]["chunks"], name)
    write_text(results.report / "run.csv", chunk_csv(figures))
    write_text(results.report / "run.html", page(figures, str(results.dataset(name))))
    log.info("report: %s", results.report / "run.html")
