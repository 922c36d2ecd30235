"""The last words of a run: where the dataset is, what it holds, what is missing, and the line that trains on it."""

import json
import shlex
from pathlib import Path
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results

TRAINER_SEQUENCE = 8192
"""speculators' default for --total-seq-len; longer samples would be cut to it."""


def train_command(folder: Path, content: dict[str, Any]) -> str:
    """The command that trains an EAGLE-3 drafter on the dataset in ``folder`` with speculators 0.9."""
    layers, model = content["layers"]["L"], content["model"]
    words = ["speculators", "train", "--speculator-type", "eagle3"]
    words += ["--verifier-name-or-path", model["folder"], "--data-path", str(folder)]
    words += ["--target-layer-ids", *(str(layer) for layer in layers), "--on-missing", "raise"]
    if content["counts"]["longest_sample"] > TRAINER_SEQUENCE:
        words += ["--total-seq-len", str(content["counts"]["longest_sample"])]
    if content["settings"]["model"]["trust_remote_code"]:
        words.append("--trust-remote-code")
    return shlex.join(words)


def closing_lines(results: Results, format_name: str = "speculators") -> list[str]:
    """Lines to print when a run is through, read from the dataset's provenance. Raises UserError without one."""
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
            f"  {counts['rejected']:,} of {counts['rows_read']:,} input rows were rejected: {results.rejected}"
        )
    if counts["failed"]:
        manifests = " ".join(str(results.manifest(chunk)) for chunk in counts["failed_chunks"])
        lines.append(f"  {counts['failed']:,} samples failed ({_listed(counts['failed_reasons'])}) and were left out;")
        lines.append(f"  to try them again: snakemake --cores 8 all -R {manifests}")
    if content["layers"]["final"] == "post_norm":
        lines.append("  The final state is after the norm: speculators from 0.5 on would apply the norm a second time.")
    lines += ["Train on it:", f"  {train_command(folder, content)}"]
    return lines


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items())
