"""The page of a run: one self-contained HTML file, for a browser and for ``snakemake --report``."""

from typing import Any

from hidden_states.report.charts import bar_chart
from hidden_states.report.corpus_sections import corpus_sections
from hidden_states.report.figures import ChunkFigures, RunFigures
from hidden_states.report.markup import by_count, count, plain, section, size, table, text
from hidden_states.report.state_sections import norm_section
from hidden_states.report.style import STYLE


def page(run: RunFigures, folder: str) -> str:
    """The page; ``folder`` is the packaged dataset, as the reader should name it."""
    content = run.provenance
    title = f"Hidden states of {content['model']['name']}"
    sections = [
        f"<h1>{text(title)}</h1>",
        _subtitle(run),
        _tiles(run),
        section("The run", _run_table(run)),
        section("Tokens per second", _speed(run)),
        *corpus_sections(run),
        norm_section(run.norms, content["layers"]["slots"]),
        section("Self-check of the server", _self_check(run.server)),
        section("Chunks", _chunk_table(run)),
        section("Dataset", _dataset(run, folder)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _subtitle(run: RunFigures) -> str:
    model, layers = run.provenance["model"], run.provenance["layers"]
    words = [
        f"{', '.join(model['architectures'])}, {model['num_layers']} layers of {model['hidden_size']:,}",
        f"SGLang {run.server.get('sglang_version')}",
        f"L = {', '.join(str(layer) for layer in layers['L'])} and the final state ({layers['final']})",
    ]
    return f'<p class="soft">{text(" · ".join(words))}</p>'


def _tiles(run: RunFigures) -> str:
    speed = run.tokens_per_second
    tiles = [
        (count(run.total("samples")), "rows in the dataset", False),
        (count(run.total("tokens")), "tokens", False),
        (size(run.total("bytes")), "of hidden states", False),
        ("–" if speed is None else count(speed), "tokens/s", False),
        (count(run.summary["rejected"]), "input rows rejected", False),
        (count(run.total("failed")), "samples failed", run.total("failed") > 0),
    ]
    boxes = "".join(
        f'<div class="tile{" warn" if warn else ""}"><b>{text(value)}</b><span>{text(words)}</span></div>'
        for value, words, warn in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _run_table(run: RunFigures) -> str:
    summary, tokens = run.summary, run.total("tokens")
    loss_share = f" ({run.total('loss_tokens') / tokens:.0%} of the tokens)" if tokens else ""
    samples = summary.get("samples", summary["accepted"])
    # A template that rewrites history makes a sample of every answer.
    made = [] if samples == summary["accepted"] else [(1, "samples made of these", count(samples))]
    rows = [
        (0, "Input rows read", count(summary["rows_read"])),
        (1, "accepted", count(summary["accepted"])),
        *made,
        (1, "rejected", count(summary["rejected"])),
        *((2, reason, count(number)) for reason, number in by_count(summary["reasons"])),
        (0, "Samples in the dataset", count(run.total("samples"))),
        (1, "failed, left out", count(run.total("failed"))),
        *((2, reason, count(number)) for reason, number in by_count(run.failed_reasons)),
        (0, "Tokens", count(tokens)),
        (1, "count in the loss", count(run.total("loss_tokens")) + loss_share),
        (0, "Bytes of hidden states", count(run.total("bytes"))),
        (0, "Server restarts", count(run.total("server_restarts"))),
    ]
    cells = [[f'<span class="in{depth}">{text(name)}</span>', text(value)] for depth, name, value in rows]
    return f'<div class="narrow">{table(["", ""], cells, numbers={1}, head_row=False)}</div>'


def _speed(run: RunFigures) -> str:
    values = [chunk.tokens_per_second for chunk in run.chunks]
    if not any(values):
        return "<p>Nothing was computed for this run: every state was in the store already.</p>"
    hover = [
        f"chunk {chunk.chunk}: {_rate(chunk)}, {count(chunk.computed_tokens or 0)} tokens computed"
        for chunk in run.chunks
    ]
    labels = [chunk.chunk for chunk in run.chunks]
    chart = bar_chart(values, labels, hover, "chunk", "tokens/s")
    note = "The last run of each chunk that computed anything; a chunk without a bar came from the store."
    return f'<figure>{chart}</figure><p class="soft">{note}</p>'


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
        return table(
            [_words(name) for name in names], [[_value(item.get(name)) for name in names] for item in value], numbers
        )
    if isinstance(value, dict):
        return table(["", ""], [[_words(name), _value(item)] for name, item in value.items()], set(), head_row=False)
    if isinstance(value, list):
        return text(", ".join(plain(item) for item in value)) or "–"
    return text(plain(value))


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
            count(chunk.samples),
            count(chunk.failed),
            count(chunk.tokens),
            count(chunk.loss_tokens),
            size(chunk.bytes),
            "–" if chunk.computed_tokens is None else count(chunk.computed_tokens),
            "–" if chunk.seconds is None else f"{chunk.seconds:,.1f}",
            "–" if chunk.tokens_per_second is None else count(chunk.tokens_per_second),
            "yes" if chunk.verified else "no",
        ]
        for chunk in run.chunks
    ]
    note = '<p class="soft">computed, seconds and tokens/s: the last run of the chunk that computed anything.</p>'
    return table(head, [[text(cell) for cell in row] for row in rows], numbers=set(range(1, 9))) + note


def _dataset(run: RunFigures, folder: str) -> str:
    content = run.provenance
    slots = [[str(slot), text(words)] for slot, words in enumerate(content["layers"]["slots"])]
    drafter = [
        [text(name), f"<code>{text(entry['key'])}</code>", text(str(entry["ids"])), text(entry["words"])]
        for name, entry in content["drafter"].items()
    ]
    return (
        f"<p><code>{text(folder)}</code>, fingerprint <code>{text(content['fingerprint'])}</code>. Train on it:</p>"
        f"<pre><code>{text(content['train'])}</code></pre>"
        f"{table(['slot', 'holds'], slots, set())}"
        "<p>Layer ids for the drafter's config:</p>"
        f"{table(['engine', 'key', 'ids', 'why'], drafter, set())}"
    )


def _rate(chunk: ChunkFigures) -> str:
    return "from the store" if chunk.tokens_per_second is None else f"{chunk.tokens_per_second:,.0f} tokens/s"


def _words(name: str) -> str:
    return text(name.replace("_", " "))
