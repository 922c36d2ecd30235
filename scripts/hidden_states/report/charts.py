"""Charts as inline SVG: one series, a baseline, a few grid lines, and a value on hovering over a bar."""

import html
import math

WIDTH, HEIGHT = 720, 220
RANGE_HEIGHT, RANGE_MARGIN = 96, 8
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 14, 40
MAX_LABELS = 12


def bar_chart(
    values: list[float | None], labels: list[str], hover: list[str], x_title: str, y_title: str, histogram: bool = False
) -> str:
    """An SVG of ``WIDTH`` × ``HEIGHT`` with one bar per value; None leaves a gap. Scales with its container.

    ``labels`` stand below the bars (a dozen of them at most are shown), in a ``histogram`` below their left edges;
    ``hover`` is each bar's tooltip.
    """
    step, top = _scale(max((value for value in values if value is not None), default=0.0))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    slot = plot_width / max(len(values), 1)
    gap = min(2.0 if histogram else 10.0, slot * 0.2)
    parts = [*_frame(f"{y_title} by {x_title}", HEIGHT), *_grid(step, top, plot_height)]
    every = math.ceil(len(values) / MAX_LABELS) or 1
    for index, value in enumerate(values):
        x = LEFT + index * slot
        if value is not None:
            height = plot_height * value / top
            parts.append(
                f'<rect x="{x + gap / 2:.2f}" y="{TOP + plot_height - height:.2f}" width="{slot - gap:.2f}" '
                f'height="{height:.2f}"><title>{html.escape(hover[index])}</title></rect>'
            )
        if index % every == 0:
            parts.append(
                f'<text class="x" x="{x if histogram else x + slot / 2:.1f}" y="{HEIGHT - BOTTOM + 16}">'
                f"{html.escape(labels[index])}</text>"
            )
    parts.append(f'<text class="title" x="{LEFT + plot_width / 2:.1f}" y="{HEIGHT - 6}">{html.escape(x_title)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def range_chart(ranges: list[tuple[float, float, float]], hover: list[str], label: str) -> str:
    """An SVG of ``WIDTH`` × ``RANGE_HEIGHT``: for each of ``ranges`` (low, middle, high) a pale bar from low to high
    with a dark mark at the middle. The baseline is 0."""
    step, top = _scale(max((high for _, _, high in ranges), default=0.0), lines=2)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, RANGE_HEIGHT - 2 * RANGE_MARGIN
    slot = plot_width / max(len(ranges), 1)
    gap = min(2.0, slot * 0.2)
    parts = [*_frame(label, RANGE_HEIGHT), *_grid(step, top, plot_height, RANGE_MARGIN)]
    for index, (values, title) in enumerate(zip(ranges, hover, strict=True)):
        x, width = LEFT + index * slot + gap / 2, slot - gap
        low, middle, high = (RANGE_MARGIN + plot_height * (1 - value / top) for value in values)
        parts.append(
            f'<g><title>{html.escape(title)}</title><rect class="range" x="{x:.2f}" y="{high:.2f}" width="{width:.2f}" '
            f'height="{max(low - high, 0.5):.2f}"/><rect x="{x:.2f}" y="{middle - 1:.2f}" width="{width:.2f}" '
            'height="2"/></g>'
        )
    return "".join([*parts, "</svg>"])


def _frame(label: str, height: int) -> list[str]:
    return [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">']


def _grid(step: float, top: float, plot_height: float, above: float = TOP) -> list[str]:
    parts = []
    for line in range(round(top / step) + 1):
        y = above + plot_height * (1 - line * step / top)
        kind = "axis" if line == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{y + 4:.1f}">{_short(line * step)}</text>')
    return parts


def round_step(smallest: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … that is not below ``smallest``."""
    power = 10 ** math.floor(math.log10(smallest))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= smallest * (1 - 1e-9))


def _scale(largest: float, lines: int = 4) -> tuple[float, float]:
    """Distance of the grid lines, and the value at the top of the chart: at most ``lines`` above the baseline."""
    if largest <= 0:
        return 1.0, 1.0
    step = round_step(largest / lines)
    return step, step * math.ceil(largest / step - 1e-9)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
