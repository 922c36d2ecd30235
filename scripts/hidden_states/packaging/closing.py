"""The last words of a run: where the dataset is, what it holds, what is missing, and the line that trains on it."""

import json
import sys
from pathlib import Path

from hidden_states.errors import UserError
from hidden_states.layout import Results


def closing_lines(results: Results, format_name: str = "speculators", repeat: str = "") -> list[str]:
    """Lines to print when a run is through, read from the dataset's provenance. Raises UserError without one.

    ``repeat``: the user's own options of snakemake, for the command that retries failed samples.
    """
    folder = results.dataset(format_name)
    try:
        content = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a finished dataset ({error}); run: snakemake --cores 8 all") from error
    counts = content["counts"]
    lines = [
        f"Dataset: {folder}",
        f"  {counts['rows']:,} rows, {counts['tokens']:,} tokens ({counts['loss_tokens']:,} of them count in the "
        f"loss), {counts['bytes']:,} bytes of hidden states",
    ]
    if counts["rejected"]:
        lines.append(
            f"  rejected: {counts['rejected']:,} of {counts['rows_read']:,} input rows, see {results.rejected}"
        )
    if counts["failed"]:
        manifests = " ".join(str(results.manifest(chunk)) for chunk in counts["failed_chunks"])
        lines.append(
            f"  failed and left out: {counts['failed']:,} ({_listed(counts['failed_reasons'])}); to try again:"
        )
        lines.append(f"  snakemake --cores 8 all {repeat + ' ' if repeat else ''}-R {manifests}")
    if content["layers"]["final"] == "post_norm" and format_name == "speculators":
        lines.append("  The final state is after the norm: speculators from 0.5 on would apply the norm a second time.")
    lines += ["Train on it:", f"  {content['train']}"]
    return lines


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items())


if __name__ == "__main__":
    print("\n".join(closing_lines(Results(Path(sys.argv[1])))))
