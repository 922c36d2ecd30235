"""benchmarks/README.md and its figure, from what was measured: ``python -m capture.page``."""

import html
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SOURCE, PAGE, FIGURE = (HERE / name for name in ("capture_h200.json", "README.md", "capture_h200.svg"))
ROW_HEIGHT, LEFT, BAR = 22, 330, 420

HEAD = """# Benchmarks

How much the capture costs, on the machine that each file names. Ratios are taken between two servers of one call, the
same but for the capture, driven by the product's own client with the same prompts; rates are those of the steady part
of a run, from 10 % to 90 % of its time, in tokens whose state was published (checked in full, renamed into the store).
A forward is 8,192 tokens, so a rate over 48 s (2048 tokens) is known to 0.5 %, one over 16 s (the others) to 1.5 %.
The modules run with `PYTHONPATH=benchmarks`.

| file | made by | on |
|---|---|---|
| `capture_h200.json` | `python -m capture`, in parts; this page: `python -m capture.page` | {machine} |
| `../docs/families.json` | `make families` | two processor cores |

## Capture

![ratio to the plain server]({figure})

{table}

{notes}

## Limits of that machine

{limits}
"""


def main() -> None:
    content = json.loads(SOURCE.read_text())
    runs = [run for run in content["runs"] if run["kind"] != "plain"]
    runs.sort(key=lambda run: (run["kind"] == "baseline", run["model_shape"], run.get("sink", ""), _length(run)))
    PAGE.write_text(
        HEAD.format(
            machine=f"{content['machine']}, SGLang {content['versions']['sglang']}",
            figure=FIGURE.name,
            table=_table(runs),
            notes=_notes(runs),
            limits=_limits(content.get("limits", {})),
        )
    )
    FIGURE.write_text(_figure(runs))


def _length(run: dict[str, Any]) -> int:
    return int(run["prompt_tokens"]) if run["prompt_tokens"].isdigit() else 0


def _name(run: dict[str, Any]) -> str:
    what = run["name"] if run["kind"] == "baseline" else f"{run['storage']}, {run['sink']}"
    return f"{run['model_shape']}, {run['prompt_tokens']} tokens, {what}"


def _table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| model shape | prompt tokens | storage, sink | plain tokens/s | with capture | ratio | GB/s | in the hook | "
        "waited for buffers | buffers | failed |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        plain, rate, ratio = (
            run[f"{name}"] for name in ("plain_tokens_per_second", "capture_tokens_per_second", "ratio")
        )
        cells = [run["model_shape"], run["prompt_tokens"]]
        if run["kind"] == "baseline":
            cells += [run["name"], f"{plain:,.0f}", f"{rate:,.0f}", f"{ratio:.3f}", "", "", "", "", ""]
        else:
            cells += [f"{run['storage']}, {run['sink']}", f"{plain:,.0f}", f"{rate:,.0f}", f"{ratio:.3f}"]
            cells += [f"{run['disk_bytes_per_second'] / 1e9:.2f}", f"{run['hook_share']:.2%}"]
            cells += [f"{run['buffer_wait_seconds']:.1f} s", f"{run['buffer_bytes'] / 1e9:.1f} GB", f"{run['failed']}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _notes(runs: list[dict[str, Any]]) -> str:
    """What each measured cell says against its target."""
    targets = []
    for run in runs:
        if run["kind"] == "baseline":
            continue
        if run["sink"] == "disk":
            reached, target = run.get("attainable_ratio"), 0.95
            of = "what disk and server allow"
        else:
            reached, target = run["ratio"], 0.99 if _length(run) >= 2048 else 0.97
            of = "the plain server"
        if reached is not None and reached < target:
            targets.append(f"- {_name(run)}: {reached:.3f} of {of}, below {target}")
    return "Below its target:\n\n" + "\n".join(targets) if targets else "Every measured cell is at its target or above."


def _limits(limits: dict[str, Any]) -> str:
    durable = limits.get("durable_write_bytes_per_second", {})
    lines = [f"- durable writes, {count} at a time: {rate / 1e9:.2f} GB/s" for count, rate in durable.items()]
    for name, words in (
        ("device_to_host_bytes_per_second", "device to pinned memory"),
        ("xxh3_bytes_per_second", "XXH3-128, one thread"),
    ):
        if name in limits:
            lines.append(f"- {words}: {limits[name] / 1e9:.1f} GB/s")
    return "\n".join(lines) or "Not measured yet."


def _figure(runs: list[dict[str, Any]]) -> str:
    height = ROW_HEIGHT * len(runs) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + BAR + 70} {height}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for index, run in enumerate(runs):
        y, width = 5 + index * ROW_HEIGHT, BAR * min(run["ratio"], 1.1)
        colour = "#8a8f98" if run["kind"] == "baseline" else "#2f6fb2"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{html.escape(_name(run))}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW_HEIGHT - 5}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + 14}">{run["ratio"]:.3f}</text>')
    parts.append(
        f'<line x1="{LEFT + BAR}" x2="{LEFT + BAR}" y1="0" y2="{height}" stroke="#c0392b" stroke-dasharray="4 3"/>'
    )
    return "".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
