"""``hidden-states``: the steps of the workflow by hand, one verb each."""

import argparse
import errno
import importlib
import logging
import sys
from pathlib import Path

from hidden_states import __version__, settings
from hidden_states.errors import UserError
from hidden_states.files import let_no_stranger_write
from hidden_states.layout import Results
from hidden_states.run_watch import end_with_the_run

VERBS = (
    "demo-model",
    "tokenize",
    "show-mask",
    "start-server",
    "stop-server",
    "extract",
    "verify-chunk",
    "verify",
    "package",
    "report",
    "evict",
    "prune",
)
REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = REPOSITORY / "config" / "schema.yaml"
DEMO_CONFIG = REPOSITORY / "config" / "config.yaml"

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; 0 when it did its work, 1 when it could not and said why."""
    parsed = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    let_no_stranger_write()
    _log_to(parsed.log)
    end_with_the_run()
    results = Results(Path(parsed.results))
    try:
        parsed.run(_settings(parsed, results), results, parsed)
    except UserError as error:
        log.error("error: %s", error)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.error(
            "error: no space left (%s); make room, then run `snakemake --cores 8 all` again: what is finished stays",
            error,
        )
        return 1
    except KeyboardInterrupt:
        log.error("interrupted; what is finished stays, and running again goes on from there")
        return 130
    return 0


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hidden-states",
        description="The steps of the hidden-states workflow, by hand. Snakemake runs the same verbs: "
        "`snakemake --cores 8 all`.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="verb", required=True)
    wanted = next((word for word in arguments if word in VERBS), None)
    for verb in VERBS:
        if wanted not in (None, verb):
            continue  # a verb is imported only when it is used, or listed
        command = importlib.import_module(f"hidden_states.commands.{verb.replace('-', '_')}")
        sub = verbs.add_parser(verb, help=command.HELP, description=command.HELP)
        sub.add_argument(
            "--configfile",
            nargs="+",
            type=Path,
            default=[],
            metavar="FILE",
            help="as for snakemake; without it, results/config.json of the last run, or else the demo's",
        )
        sub.add_argument("--results", default="results", metavar="DIR", help="results folder (default: results)")
        sub.add_argument("--log", type=Path, metavar="FILE", help="write the messages to this file too")
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def _settings(parsed: argparse.Namespace, results: Results) -> dict:
    if parsed.configfile:
        return settings.load(parsed.configfile, SCHEMA)
    if results.config.is_file():
        return settings.read_resolved(results, SCHEMA)
    return settings.load_demo(DEMO_CONFIG, SCHEMA, REPOSITORY)


def _log_to(file: Path | None) -> None:
    """Messages go to stderr and, where asked for, to ``file``."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(file, encoding="utf-8"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=handlers)
    for noisy in ("httpx", "urllib3", "filelock", "fsspec", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
