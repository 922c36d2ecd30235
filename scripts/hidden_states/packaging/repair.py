"""What ``snakemake verify`` reported about the dataset and the store, and what packaging does about it."""

import logging
import os
from datetime import datetime
from pathlib import Path

from hidden_states.layout import Results
from hidden_states.packaging.survey import Survey, state_rows
from hidden_states.store.quarantine import quarantine
from hidden_states.store.tickets import DATASET, read_ticket

log = logging.getLogger(__name__)


def damaged_files(results: Results, folder: Path) -> set[str]:
    """Names, relative to the dataset in ``folder``, that the last ticket lists as damaged."""
    prefix = f"{os.path.relpath(folder, results.root)}/"
    listed = read_ticket(results, DATASET).get("files", {})
    return {name.removeprefix(prefix) for name in listed if name.startswith(prefix)}


def quarantine_foreign(results: Results, survey: Survey) -> None:
    """Move the foreign and broken files of the store that the last ticket lists to the quarantine.

    A ticket stays after its repair, so a name in it may stand for a good file by now: one that a manifest refers to,
    or that was written after the ticket, is left where it is.
    """
    ticket = read_ticket(results, DATASET)
    listed: dict[str, str] = ticket.get("store", {})
    present = {name for name in listed if _is_ours_to_move(results, name, ticket["time"])}
    if not present:
        return
    present -= {row.file for row in state_rows(results, survey) if row.file in present}
    for name in sorted(present):
        quarantine(results, results.root / name, listed[name])


def _is_ours_to_move(results: Results, name: str, ticket_time: str) -> bool:
    """Whether ``name`` lies below the store, and was there, as it is, when the ticket was written."""
    path = Path(os.path.normpath(results.root / name))
    if not path.is_relative_to(os.path.normpath(results.states)):
        log.warning("ticket: %s is not in %s and stays where it is", name, results.states)
        return False
    try:
        written = os.lstat(path).st_mtime
    except FileNotFoundError:
        return False
    return written <= datetime.fromisoformat(ticket_time).timestamp()
