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

    name, num_chunks = settings["packaging"]["formats"][0], settings["extraction"]["chunks"]
    figures = gather(results, num_chunks, name)
    figures.shown = _shown(settings, results, num_chunks)
    write_text(results.report / "run.csv", chunk_csv(figures))
    write_text(results.report / "run.html", page(figures, str(results.dataset(name))))
    log.info("report: %s", results.report / "run.html")


def _shown(settings: dict[str, Any], results: Results, num_chunks: int) -> list[Any] | None:
    from hidden_states.errors import UserError
    from hidden_states.layout import chunk_name
    from hidden_states.report.conversations import model_decoder, shown_samples
    from hidden_states.settings import model_folder

    try:
        decode = model_decoder(model_folder(settings, results), settings["model"]["trust_remote_code"])
    except UserError as error:
        log.warning("no samples are shown: %s", error)
        return None
    return shown_samples(results, [chunk_name(index) for index in range(num_chunks)], decode)
