"""Small pieces of the page: escaped text, sections, tables, and numbers as people read them."""

import html
from typing import Any


def text(value: str) -> str:
    return html.escape(value)


def section(title: str, body: str) -> str:
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def note(words: str) -> str:
    return f'<p class="soft">{text(words)}</p>'


def table(head: list[str], rows: list[list[str]], numbers: set[int], head_row: bool = True) -> str:
    """``rows`` hold HTML; columns in ``numbers`` are set to the right."""
    kinds = [' class="n"' if column in numbers else "" for column in range(len(head))]
    top = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table>{f"<tr>{top}</tr>" if head_row else ""}{body}</table></div>'


def meter(share: float, words: str) -> str:
    """``words`` in a table's cell with a bar before them; ``share`` of its full width, from 0 to 1."""
    bar = f'<span class="meter"><span style="width:{100 * share:.1f}%"></span></span>'
    return f'<span class="whole">{bar}{text(words)}</span>'


def by_count(reasons: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def count(value: float) -> str:
    return f"{value:,.0f}"


def size(num_bytes: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes:.0f} B"


def figure(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return figure(value) if isinstance(value, float) else str(value)
