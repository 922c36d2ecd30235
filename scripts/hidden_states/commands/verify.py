"""``hidden-states verify``: quality control of everything on the disk."""

import argparse
import logging
import os
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.run_lock import RUN_PID, RunLock

HELP = "Read everything of a run in full and say what is wrong; write tickets by which `snakemake all` repairs it."

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeat-options",
        default="",
        metavar="OPTIONS",
        help="options of snakemake to show in the commands for repair, such as --repeat-options='--configfile my.yaml'",
    )


def run(settings: dict[str, Any], results: Results, arguments: argparse.Namespace) -> None:
    """Verify and print the result. Raises UserError when anything is wrong."""
    from hidden_states.verification.dataset import verify

    command = " ".join(["snakemake --cores 8 all", arguments.repeat_options]).strip()
    if not results.root.is_dir():
        raise UserError(f"{results.root} does not exist: there is nothing to verify yet. Run: {command}")
    if RUN_PID not in os.environ:
        RunLock(results).take("`hidden-states verify`")
    try:
        verified = verify(settings, results, _specification(settings, results))
    except UserError as error:
        raise UserError(f"{error} Run: {command}") from None
    findings = verified.findings
    print(f"{results.root}: {verified.states:,} states of {verified.bytes:,} bytes in the manifests")
    for note in findings.notes:
        print(f"note: {note}")
    if verified.failed:
        manifests = " ".join(str(results.manifest(chunk)) for chunk in verified.failed)
        print(f"{sum(verified.failed.values()):,} samples failed and are not in the dataset; to try them again:")
        print(f"  {command} -R {manifests}")
    if findings:
        raise UserError("\n".join(["verification failed:", *findings.lines(), f"to repair it: {command}"]))
    print("everything is in order")


def _specification(settings: dict[str, Any], results: Results) -> Any | None:
    """What the configuration asks for, or None where the model or SGLang is not on this machine."""
    from hidden_states.server.specification import build

    try:
        return build(settings, results)
    except UserError as error:
        log.warning("chunks are compared with each other, not with the configuration: %s", error)
        return None
