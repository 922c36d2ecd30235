"""``hidden-states`` as it is, but for the time after which a silent server is taken to hang."""

import os
import sys
from pathlib import Path

from helpers.snakemake_run import Workflow

PROGRAM = """#!{python}
import sys
from hidden_states import cli
from hidden_states.extraction.limits import Limits

Limits.__init__.__defaults__ = tuple(
    {{"silence": {silence}, "silence_per_token": 0.0}}.get(name, field.default)
    for name, field in Limits.__dataclass_fields__.items()
)
sys.exit(cli.main())
"""


def make_impatient(run: Workflow, folder: Path, silence: float) -> None:
    """Put the program, written into ``folder``, before the real one. ``silence``: seconds; the product's are 200."""
    folder.mkdir()
    program = folder / "hidden-states"
    program.write_text(PROGRAM.format(python=sys.executable, silence=silence))
    program.chmod(0o755)
    run.environment["PATH"] = os.pathsep.join([str(folder), run.environment["PATH"]])
