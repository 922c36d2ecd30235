"""The page of a run: one self-contained HTML file, for a browser and for ``snakemake --report``."""

import html
from typing import Any

import numpy as np

from hidden_states.report.charts import bar_chart, round_step
from hidden_states.report.figures import ChunkFigures, RunFigures
from hidden_states.report.style import STYLE

LENGTH_BARS = 24


def page(run: RunFigures, folder: str) -> str:
    """The page; ``folder`` is the packaged dataset, as the reader should name it."""
    content = run.provenance
    title = f"Hidden states of {content['model']['name']}"
    sections = [
        f"<h1>{_text(title)}</h1>",
        _subtitle(run),
        _tiles(run),
        _section("The run", _run_table(run)),
        _section("Tokens per second", _speed(run)),
        _section("Length of the samples", _lengths(run.length_counts)),
        _section("Self-check of the server", _self_check(run.server)),
        _section("Chunks", _chunk_table(run)),
        _section("Dataset", _dataset(run, folder)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _subtitle(run: RunFigures) -> str:
    model, layers = run.provenance["model"], run.provenance["layers"]
    words = [
        f"{', '.join(model['architectures'])}, {model['num_layers']} layers of {model['hidden_size']:,}",
        f"SGLang {run.server.get('sglang_version')}",
        f"L = {', '.join(str(layer) for layer in layers['L'])} and the final state ({layers['final']})",
    ]
    return f'<p class="soft">{_text(" · ".join(words))}</p>'


def _tiles(run: RunFigures) -> str:
    speed = run.tokens_per_second
    tiles = [
        (_count(run.total("samples")), "rows in the dataset", False),
        (_count(run.total("tokens")), "tokens", False),
        (_size(run.total("bytes")), "of hidden states", False),
        ("–" if speed is None else _count(speed), "tokens/s", False),
        (_count(run.summary["rejected"]), "input rows rejected", False),
        (_count(run.total("failed")), "samples failed", run.total("failed") > 0),
    ]
    boxes = "".join(
        f'<div class="tile{" warn" if warn else ""}"><b>{_text(value)}</b><span>{_text(words)}</span></div>'
        for value, words, warn in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _run_table(run: RunFigures) -> str:
    summary, tokens = run.summary, run.total("tokens")
    loss_share = f" ({run.total('loss_tokens') / tokens:.0%} of the tokens)" if tokens else ""
    rows = [
        (0, "Input rows read", _count(summary["rows_read"])),
        (1, "accepted", _count(summary["accepted"])),
        (1, "rejected", _count(summary["rejected"])),
        *((2, reason, _count(count)) for reason, count in _by_count(summary["reasons"])),
        (0, "Samples in the dataset", _count(run.total("samples"))),
        (1, "failed, left out", _count(run.total("failed"))),
        *((2, reason, _count(count)) for reason, count in _by_count(run.failed_reasons)),
        (0, "Tokens", _count(tokens)),
        (1, "count in the loss", _count(run.total("loss_tokens")) + loss_share),
        (0, "Bytes of hidden states", _count(run.total("bytes"))),
        (0, "Server restarts", _count(run.total("server_restarts"))),
    ]
    cells = [[f'<span class="in{depth}">{_text(name)}</span>', _text(value)] for depth, name, value in rows]
    return f'<div class="narrow">{_table(["", ""], cells, numbers={1}, head_row=False)}</div>'


def _speed(run: RunFigures) -> str:
    values = [chunk.tokens_per_second for chunk in run.chunks]
    if not any(values):
        return "<p>Nothing was computed for this run: every state was in the store already.</p>"
    hover = [
        f"chunk {chunk.chunk}: {_rate(chunk)}, {_count(chunk.computed_tokens or 0)} tokens computed"
        for chunk in run.chunks
    ]
    labels = [chunk.chunk for chunk in run.chunks]
    chart = bar_chart(values, labels, hover, "chunk", "tokens/s")
    note = "The last run of each chunk that computed anything; a chunk without a bar came from the store."
    return f'<figure>{chart}</figure><p class="soft">{note}</p>'


def _lengths(counts: np.ndarray) -> str:
    """Bars of equal, round width."""
    width = max(int(round_step(max(len(counts) - 1, 1) / LENGTH_BARS)), 1)
    edges = np.arange(0, len(counts), width)
    values = np.add.reduceat(counts, edges)
    hover = [
        f"{start:,} to {start + width - 1:,} tokens: {count:,} samples"
        for start, count in zip(edges.tolist(), values.tolist(), strict=True)
    ]
    labels = [f"{start:,}" for start in edges.tolist()]
    return (
        f"<figure>{bar_chart(values.tolist(), labels, hover, 'tokens in a sample', 'samples', histogram=True)}</figure>"
    )


def _self_check(server: dict[str, Any]) -> str:
    check = server.get("self_check")
    if not check:
        return "<p>No figures were recorded.</p>"
    return "<p>Taken at the start of the server, before the first sample was sent.</p>" + _value(check)


def _value(value: Any) -> str:
    """Nested figures as tables: a list of equal records as rows, anything else as name and value."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        names = list(value[0])
        numbers = {index for index, name in enumerate(names) if isinstance(value[0][name], int | float)}
        return _table(
            [_words(name) for name in names], [[_value(item.get(name)) for name in names] for item in value], numbers
        )
    if isinstance(value, dict):
        return _table(["", ""], [[_words(name), _value(item)] for name, item in value.items()], set(), head_row=False)
    if isinstance(value, list):
        return _text(", ".join(_plain(item) for item in value)) or "–"
    return _text(_plain(value))


def _chunk_table(run: RunFigures) -> str:
    head = [
        "chunk",
        "samples",
        "failed",
        "tokens",
        "loss tokens",
        "bytes",
        "computed",
        "seconds",
        "tokens/s",
        "verified",
    ]
    rows = [
        [
            chunk.chunk,
            _count(chunk.samples),
            _count(chunk.failed),
            _count(chunk.tokens),
            _count(chunk.loss_tokens),
            _size(chunk.bytes),
            "–" if chunk.computed_tokens is None else _count(chunk.computed_tokens),
            "–" if chunk.seconds is None else f"{chunk.seconds:,.1f}",
            "–" if chunk.tokens_per_second is None else _count(chunk.tokens_per_second),
            "yes" if chunk.verified else "no",
        ]
        for chunk in run.chunks
    ]
    note = '<p class="soft">computed, seconds and tokens/s: the last run of the chunk that computed anything.</p>'
    return _table(head, [[_text(cell) for cell in row] for row in rows], numbers=set(range(1, 9))) + note


def _dataset(run: RunFigures, folder: str) -> str:
    content = run.provenance
    slots = [[str(slot), _text(words)] for slot, words in enumerate(content["layers"]["slots"])]
    drafter = [
        [_text(name), f"<code>{_text(entry['key'])}</code>", _text(str(entry["ids"])), _text(entry["words"])]
        for name, entry in content["drafter"].items()
    ]
    return (
        f"<p><code>{_text(folder)}</code>, fingerprint <code>{_text(content['fingerprint'])}</code>. Train on it:</p>"
        f"<pre><code>{_text(content['train'])}</code></pre>"
        f"{_table(['slot', 'holds'], slots, set())}"
        "<p>Layer ids for the drafter's config:</p>"
        f"{_table(['engine', 'key', 'ids', 'why'], drafter, set())}"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _table(head: list[str], rows: list[list[str]], numbers: set[int], head_row: bool = True) -> str:
    """``rows`` hold HTML; columns in ``numbers`` are set to the right."""
    kinds = [' class="n"' if column in numbers else "" for column in range(len(head))]
    top = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table>{f"<tr>{top}</tr>" if head_row else ""}{body}</table></div>'


def _by_count(reasons: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def _rate(chunk: ChunkFigures) -> str:
    return "from the store" if chunk.tokens_per_second is None else f"{chunk.tokens_per_second:,.0f} tokens/s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _size(num_bytes: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {name}"
    return f"{num_bytes:.0f} B"


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    return _text(name.replace("_", " "))


def _text(value: str) -> str:
    return html.escape(value)
