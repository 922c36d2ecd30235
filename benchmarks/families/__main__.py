"""Measure the families named, or all, and write docs/families.json and docs/families.md.

What is not measured this time stays as it was, so that one family can be measured again.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from helpers.families import DEFAULT, EXPLICIT, measure
from helpers.family_models import FAMILIES

from families.page import render
from families.rounding import SHAPES, measure_rounding

DOCS = Path(__file__).parents[2] / "docs"
VARIANTS = ((DEFAULT, "pre_norm"), (EXPLICIT, "post_norm"))
ROUNDING = "rounding"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m families", description=__doc__)
    choices = [*FAMILIES, ROUNDING]
    parser.add_argument(
        "families", nargs="*", metavar="family", help=f"one or more of {', '.join(choices)}; or none: all"
    )
    wanted = parser.parse_args().families or choices
    if unknown := [name for name in wanted if name not in choices]:
        parser.error(f"no such family: {', '.join(unknown)}; choose from {', '.join(choices)}")
    for name in wanted:
        if name == ROUNDING:
            _save({"rounding": [asdict(measure_rounding(shape)) for shape in SHAPES]})
        else:
            _save({"families": {name: _measure(name)}})


def _measure(family: str) -> list[dict[str, Any]]:
    """The rows of one family, one of each variant."""
    with tempfile.TemporaryDirectory(prefix=f"families-{family}-") as folder:
        rows = []
        for layers, final in VARIANTS:
            rows.append(asdict(measure(family, layers, final, Path(folder))))
            print(json.dumps(rows[-1]), flush=True)
        return [row | {"sglang": version("sglang"), "transformers": version("transformers")} for row in rows]


def _save(new: dict[str, Any]) -> None:
    """Merge ``new`` into the JSON, families in the order of ``FAMILIES``, and write the page anew."""
    path = DOCS / "families.json"
    content = json.loads(path.read_text()) if path.exists() else {"families": {}, "rounding": []}
    measured = content["families"] | new.get("families", {})
    content |= new | {"families": {name: measured[name] for name in FAMILIES if name in measured}}
    path.write_text(json.dumps(content, indent=1) + "\n")
    (DOCS / "families.md").write_text(render(content))


if __name__ == "__main__":
    main()
