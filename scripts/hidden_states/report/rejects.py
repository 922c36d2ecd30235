"""A few rejected rows of each reason, as examples."""

import pyarrow
import pyarrow.parquet

from hidden_states.layout import Results

EXAMPLES, DETAIL_CHARACTERS = 2, 240


def rejected_examples(results: Results, reasons: dict[str, int]) -> dict[str, list[str]]:
    """By reason, the first rows with it: where they are and what was found. ``reasons``: code → count.

    Empty where ``rejected.parquet`` cannot be read; the report goes without examples then.
    """
    examples: dict[str, list[str]] = {reason: [] for reason in reasons}
    wanted = {reason: min(number, EXAMPLES) for reason, number in reasons.items()}
    columns = ["source_file", "source_row", "reason", "detail"]
    try:
        with pyarrow.parquet.ParquetFile(results.rejected) as file:
            for batch in file.iter_batches(4096, columns=columns):
                _take(batch, examples, wanted)
                if not wanted:
                    break
    except (pyarrow.ArrowException, OSError):
        return {}
    return examples


def _take(batch: pyarrow.RecordBatch, examples: dict[str, list[str]], wanted: dict[str, int]) -> None:
    for number, reason in enumerate(batch.column("reason").to_pylist()):
        if not wanted.get(reason):
            continue
        file, row, detail = (batch.column(name)[number].as_py() for name in ("source_file", "source_row", "detail"))
        short = detail if len(detail) <= DETAIL_CHARACTERS else detail[:DETAIL_CHARACTERS] + " …"
        examples[reason].append(f"{file} row {row}: {short}")
        wanted[reason] -= 1
        if not wanted[reason]:
            del wanted[reason]
