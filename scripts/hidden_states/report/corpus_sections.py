"""The parts of the page about the corpus: what was left out, lengths, loss, vocabulary, and samples to look at."""

from typing import Any

import numpy as np

from hidden_states.conversations.reasons import REASONS
from hidden_states.report.charts import bar_chart, round_step
from hidden_states.report.conversations import Segment, ShownSample
from hidden_states.report.figures import SHARE_BARS, RunFigures
from hidden_states.report.markup import by_count, count, meter, note, section, table, text

LENGTH_BARS = 24
MOST_FILES = 40


def corpus_sections(run: RunFigures) -> list[str]:
    """Sections in their order on the page; one without figures is left out."""
    sections = [
        section("Rows left out", _rejects(run)),
        section("Length of the samples", lengths(run.length_counts)),
        section("Tokens with loss", _loss_shares(run)),
        section("Samples and their loss masks", _conversations(run.shown)),
    ]
    vocabulary = run.summary.get("vocabulary")
    if vocabulary:
        sections.append(section("Vocabulary", _vocabulary(vocabulary)))
    drafted = run.provenance.get("draft_vocabulary")
    if drafted:
        sections.append(section("Vocabulary of the drafter", _draft_vocabulary(drafted)))
    return sections


def _rejects(run: RunFigures) -> str:
    reasons, read = by_count(run.summary["reasons"]), run.summary["rows_read"]
    inputs = _inputs(run.summary.get("inputs", {}))
    if not reasons:
        return f"<p>None: all {count(read)} rows were accepted.</p>" + inputs
    most = reasons[0][1]
    rows = [
        [
            f'<code class="whole">{text(reason)}</code>',
            meter(number / most, count(number)),
            f"{number / read:.2%}",
            text(REASONS.get(reason, ""))
            + "".join(f'<p class="example">{text(line)}</p>' for line in run.rejected_examples.get(reason, [])),
        ]
        for reason, number in reasons
    ]
    where = note("Every one is in tokens/rejected.parquet; the first of each kind are shown here.")
    return table(["reason", "rows", "of all", "what it means, and examples"], rows, {2}) + where + inputs


def _inputs(inputs: dict[str, dict[str, int]]) -> str:
    names = ("rows_read", "accepted", "rejected")
    # Those that lost most come first, where there are too many to show.
    files = sorted(inputs.items(), key=lambda item: -item[1]["rejected"])[:MOST_FILES]
    rows = [[text(file), *(count(numbers[name]) for name in names)] for file, numbers in sorted(files)]
    if not rows:
        return ""
    more = len(inputs) - len(rows)
    return table(["input file", "rows", "accepted", "rejected"], rows, {1, 2, 3}) + (
        note(f"and {more:,} more files, of which fewer rows were rejected") if more else ""
    )


def lengths(counts: np.ndarray) -> str:
    """Bars of equal, round width; ``counts[n]`` samples have n tokens."""
    width = max(int(round_step(max(len(counts) - 1, 1) / LENGTH_BARS)), 1)
    edges = np.arange(0, len(counts), width)
    values = np.add.reduceat(counts, edges)
    hover = [
        f"{start:,} to {start + width - 1:,} tokens: {number:,} samples"
        for start, number in zip(edges.tolist(), values.tolist(), strict=True)
    ]
    labels = [f"{start:,}" for start in edges.tolist()]
    chart = bar_chart(values.tolist(), labels, hover, "tokens in a sample", "samples", histogram=True)
    if not counts.sum():
        return f"<figure>{chart}</figure>"
    below = np.cumsum(counts) / counts.sum()
    half, most = (int(np.searchsorted(below, share)) for share in (0.5, 0.99))
    words = (
        f"Half of the samples have at most {half:,} tokens, 99 % at most {most:,}; the longest has {len(counts) - 1:,}."
    )
    return f"<figure>{chart}</figure>{note(words)}"


def _loss_shares(run: RunFigures) -> str:
    step = 100 // SHARE_BARS
    hover = [
        f"{step * index} to {step * (index + 1)} % of the tokens: {number:,} samples"
        for index, number in enumerate(run.share_counts.tolist())
    ]
    labels = [f"{step * index} %" for index in range(SHARE_BARS)]
    chart = bar_chart(
        run.share_counts.tolist(), labels, hover, "share of a sample's tokens with loss", "samples", histogram=True
    )
    tokens, loss_tokens = run.total("tokens"), run.total("loss_tokens")
    words = f"{count(loss_tokens)} of {count(tokens)} tokens count in the loss"
    return f"<figure>{chart}</figure>{note(f'{words} ({loss_tokens / tokens:.1%}).' if tokens else words + '.')}"


def _conversations(shown: list[ShownSample] | None) -> str:
    if shown is None:
        return "<p>The model's tokenizer could not be loaded to show any; the log says why.</p>"
    if not shown:
        return "<p>There are none.</p>"
    legend = (
        '<p class="soft">As the model reads them. What is <mark>marked like this</mark> counts in the loss: it should '
        "be exactly what the assistant says, the end of its turn included. ↵ stands before the end of a line.</p>"
    )
    return legend + "".join(_sample(sample) for sample in shown)


def _sample(sample: ShownSample) -> str:
    head = (
        f"sample {sample.sample_id:,} · {sample.source} · {sample.num_tokens:,} tokens, "
        f"{sample.num_loss_tokens:,} with loss"
    )
    return (
        f"<details open><summary>{text(head)}</summary>"
        f'<div class="talk">{"".join(_segment(segment) for segment in sample.segments)}</div></details>'
    )


def _segment(segment: Segment) -> str:
    if segment.left_out:
        return f'<span class="gap">… {segment.left_out:,} tokens are not shown …</span>'
    words = text(_visible(segment.text)).replace("\n", "<i>↵</i>\n")
    return f"<mark>{words}</mark>" if segment.has_loss else words


def _visible(words: str) -> str:
    """Control characters as their pictures: a page must not hold them."""
    return "".join(chr(0x2400 + ord(sign)) if sign < " " and sign not in "\n\t" else sign for sign in words)


def _vocabulary(found: dict[str, Any]) -> str:
    sizes = [
        ("ids of the tokenizer", found["tokenizer_ids"]),
        ("added tokens among them", found["added_tokens"]),
        ("ids of the model (vocab_size)", found["config_ids"]),
        ("rows of the embedding", found["embedding_rows"]),
        ("rows of lm_head", found["lm_head_rows"]),
        ("ids of the tokenizer without a row", found["ids_without_row"]),
    ]
    rows = [[text(name), "–" if number is None else count(number)] for name, number in sizes]
    special = [
        [
            kind,
            text(", ".join(f"{number} {token}" for number, token in entry["model"].items())) or "–",
            "–" if entry["tokenizer"] is None else str(entry["tokenizer"]),
        ]
        for kind, entry in found["special"].items()
    ]
    lines = "".join(f'<p class="warn">{text(line)}</p>' for line in found["warnings"])
    return (
        lines
        + f'<div class="narrow">{table(["", ""], rows, {1}, head_row=False)}</div>'
        + table(["special token", "ids in the model's files", "id in the tokenizer"], special, set())
        + "".join(note(line) for line in found["notes"])
    )


def _draft_vocabulary(found: dict[str, Any]) -> str:
    shares = sorted((int(ids), share) for ids, share in found["share_by_size"].items())
    rows = [
        [
            f"<b>{count(ids)}</b>" if ids == found["size"] else count(ids),
            "–" if share is None else meter(share, f"{share:.2%}"),
        ]
        for ids, share in shares
    ]
    share = "–" if found["share"] is None else f"{found['share']:.2%}"
    words = (
        f"The {count(found['size'])} chosen ids cover {share} of the {count(found['loss_tokens'])} tokens with loss. "
        f"{count(found['ids_used'])} of the model's {count(found['model_ids'])} ids occur among them."
    )
    return (
        f'<p>{text(words)}</p><div class="narrow">{table(["most frequent ids", "tokens with loss"], rows, {0})}</div>'
    )
