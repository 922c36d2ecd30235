"""``run.csv``: the figures of the chunks, one a line, for a spreadsheet."""

import csv
from dataclasses import asdict, fields
from io import StringIO

from hidden_states.report.figures import ChunkFigures, RunFigures


def chunk_csv(run: RunFigures) -> str:
    """Comma-separated, with a header line; an empty cell where nothing was computed."""
    text = StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(ChunkFigures)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(chunk) for chunk in run.chunks)
    return text.getvalue()
