"""``PYTHONPATH=benchmarks:tests python -m masks --data ../shared/data [--templates FOLDER] [--output FILE] [NAME …]``.

Every row below ``conversations/`` and ``malformed/`` and of ``nasty.jsonl``, every fifth once more with reasoning, with
each template of tests/helpers/mask_templates.py and each ``*.jinja`` in FOLDER that is of a family known there.
"""

import argparse
import time
from pathlib import Path

from helpers.mask_table import Line, measure, read_all, real_templates
from helpers.mask_templates import FAMILIES

PAGE = """# Loss masks

What becomes of real conversations with each chat template, and whether two ways to compute the mask agree: that of the
workflow, by renderings and tokens, and one by the look of a family's answers in the text and the character offsets of
a fast tokenizer. `agree` is the share of the samples whose masks are equal to the last token. Made by

    PYTHONPATH=benchmarks:tests python -m masks --data ../shared/data --templates FOLDER --every {every} \\
        --output docs/masks.md

from {rows:,} rows: every {nth} of the test data, a sixth of them with reasoning added. Small letters are templates of
our own (`tests/helpers/mask_templates.py`), the others those of models, as public repositories have them. Rows are
rejected as `mask_ambiguous` mostly where a model always thinks and the row has no reasoning, and as `template_error`
where a template has no place for a row's reasoning or tools.

"""
COLUMNS = ("template", "rows", "accepted", "samples", "rejected, by reason", "answers compared", "tokens", "with loss")
HEADER = f"| {' | '.join(COLUMNS)} | agree |\n|---|---:|---:|---:|---|---:|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(prog="masks")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--templates", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth row only")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("conversations/*"))
    files += [arguments.data / "nasty.jsonl", *sorted(arguments.data.glob("malformed/*"))]
    rows = read_all(files)[:: arguments.every]
    families = FAMILIES | (real_templates(arguments.templates) if arguments.templates else {})
    text = [HEADER]
    print(HEADER, flush=True)
    for name, family in families.items():
        if arguments.names and name not in arguments.names:
            continue
        begin = time.perf_counter()
        line = measure(name, family, rows)
        text.append(row_of(line))
        print(text[-1], f"<!-- {time.perf_counter() - begin:.0f} s -->", flush=True)
        for problem in line.agreement.different[:3]:
            print("  differs:", problem)
    if arguments.output:
        nth = "one" if arguments.every == 1 else f"{arguments.every}th"
        page = PAGE.format(every=arguments.every, nth=nth, rows=len(rows))
        arguments.output.write_text(page + "\n".join(text) + "\n", encoding="utf-8")


def row_of(line: Line) -> str:
    """One line of the table. ``agree``: share of the samples whose masks are equal to the last token."""
    found = line.agreement
    agree = f"{(found.samples - len(found.different)) / found.samples:.2%}" if found.samples else "–"
    reasons = ", ".join(f"{code} {count}" for code, count in line.reasons.most_common())
    cells = (line.name, line.rows, line.accepted, line.samples, reasons, found.answers, found.tokens, found.loss_tokens)
    return f"| {' | '.join(map(str, cells))} | {agree} |"


if __name__ == "__main__":
    main()
