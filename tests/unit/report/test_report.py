"""The report: its figures are those of the run, its page is one well-formed file."""

import csv
import json
import re
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.finished_run import Run, make_sample
from hidden_states.errors import UserError
from hidden_states.files import write_json
from hidden_states.report.charts import bar_chart, round_step
from hidden_states.report.conversations import Segment, ShownSample
from hidden_states.report.figures import gather
from hidden_states.report.page import page
from hidden_states.report.table import chunk_csv

RATES = {"samples": 3, "reused": 0, "failed": 0, "bytes": 10, "bytes_per_second": 5, "server_restarts": 1}

INPUTS = [(f"lost{number}", number) for number in range(43)]


@pytest.fixture
def run(tmp_path) -> Run:
    """Chunk 0000 was computed in two goes, 0001 came from the store."""
    chunks = [[make_sample(seed, 3 + seed, failed=seed == 2) for seed in range(4)], [make_sample(9, 40)]]
    run = Run(tmp_path, chunks).write()
    run.package()
    lines = [
        {"key": "ab", "tokens": 3, "reason": None},
        {"run": {"tokens": 100, "seconds": 10.0, "tokens_per_second": 10.0, **RATES}},
        {"run": {"tokens": 300, "seconds": 2.0, "tokens_per_second": 150.0, **RATES}},
        {"run": {"tokens": 0, "seconds": 0.1, "tokens_per_second": 0.0, **RATES}},
    ]
    run.results.journal("0000").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(run.results.chunk_qa("0000"), {})
    return run


def test_figures_are_those_of_the_manifests(run):
    figures = gather(run.results, 2)
    assert (figures.total("samples"), figures.total("failed")) == (4, 1)
    assert figures.total("tokens") == 3 + 4 + 6 + 40
    good = [sample for chunk in run.chunks for sample in chunk if sample.states is not None]
    assert figures.total("loss_tokens") == sum(sum(sample.mask) for sample in good)
    assert figures.total("bytes") == figures.provenance["counts"]["bytes"]
    assert dict(figures.failed_reasons) == {"timeout": 1}
    assert {length: count for length, count in enumerate(figures.length_counts) if count} == {3: 1, 4: 1, 6: 1, 40: 1}
    assert [chunk.verified for chunk in figures.chunks] == [True, False]


def test_speed_is_that_of_the_last_run_that_computed_anything(run):
    figures = gather(run.results, 2)
    assert [chunk.tokens_per_second for chunk in figures.chunks] == [150.0, None]
    assert figures.tokens_per_second == 150.0


def test_the_table_has_a_line_per_chunk(run):
    rows = list(csv.DictReader(chunk_csv(gather(run.results, 2)).splitlines()))
    assert [row["chunk"] for row in rows] == ["0000", "0001"]
    assert (rows[0]["tokens_per_second"], rows[1]["tokens_per_second"]) == ("150.0", "")


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def test_the_page_is_one_well_formed_file_with_every_figure(run):
    server = json.loads(run.results.ready.read_text())
    check = {"replay": {"agreement": 0.98125}, "slots": [{"slot": "L = 2", "median": 0.004, "largest": 0.06}]}
    write_json(run.results.ready, {**server, "self_check": check})
    figures = gather(run.results, 2)
    parts = [Segment("<|user|>\n", False), Segment("", False, 1234), Segment("</mark>yes\n", True)]
    figures.shown = [ShownSample(7, "a.jsonl row 3", 2000, 3, parts)]
    text = page(figures, "results/dataset/speculators")
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    for word in (
        "timeout",
        "empty",
        "0.9812",
        "L = 2",
        "0.06",
        "53",
        "speculators train",
        "0001",
        "1,234",
        "</mark>yes",
    ):
        assert word in parser.text
    assert not re.search(r'(src|href)="', text), "nothing is loaded from elsewhere"


def test_the_page_explains_what_was_left_out(run):
    rows = [("a.jsonl", 3, "empty", "no turns"), ("b.jsonl", 8, "invalid_json", "x" * 500), ("b.jsonl", 9, "empty", "")]
    rows += [("c.jsonl", 1, "empty", "the third")]
    columns = zip(*rows, strict=True)
    names = ("source_file", "source_row", "reason", "detail")
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), run.results.rejected)
    summary = json.loads(run.results.summary.read_text())
    inputs = {f"{name}.jsonl": {"rows_read": 5, "accepted": 5 - lost, "rejected": lost} for name, lost in INPUTS}
    more = {"rows_read": 8, "rejected": 4, "reasons": {"invalid_json": 1, "empty": 3}, "inputs": inputs}
    write_json(run.results.summary, summary | more)
    text = page(gather(run.results, 2), "results")
    assert text.index(">empty<") < text.index(">invalid_json<"), "the most frequent first"
    for words in ("a.jsonl row 3: no turns", "b.jsonl row 9: ", "37.50%", "There is nothing to learn from", "x …"):
        assert words in text
    assert "the third" not in text and "x" * 300 not in text
    assert "and 3 more files" in text and ">lost4.jsonl<" in text


def test_shares_of_loss_are_those_of_the_samples(tmp_path):
    masks = [[0] * 20, [1] * 20, [1] + [0] * 19, [0, 1] * 10]
    samples = [make_sample(seed, 20) for seed in range(4)]
    for sample, mask in zip(samples, masks, strict=True):
        sample.mask = mask
    run = Run(tmp_path, [samples]).write()
    run.package()
    figures = gather(run.results, 1)
    assert {bar: number for bar, number in enumerate(figures.share_counts.tolist()) if number} == {
        0: 1,
        1: 1,
        10: 1,
        19: 1,
    }
    assert "50 to 55 % of the tokens: 1 samples" in page(figures, "results")


def test_vocabularies_are_on_the_page(run):
    found = {
        "tokenizer_ids": 151669,
        "highest_id": 151668,
        "added_tokens": 26,
        "config_ids": 151936,
        "embedding_rows": 152064,
        "lm_head_rows": None,
        "ids_without_row": 0,
        "rows_without_id": 267,
        "special": {"eos": {"model": {"5": "'<|end|>'"}, "tokenizer": None}},
        "notes": ["rows are padded"],
        "warnings": ["look <here>"],
    }
    summary = json.loads(run.results.summary.read_text())
    write_json(run.results.summary, summary | {"vocabulary": found})
    run.draft_vocabulary = 7
    share = run.package()["draft_vocabulary"]["share"]
    text = page(gather(run.results, 2), "results")
    for words in ("152,064", "151,669", "5 &#x27;&lt;|end|&gt;&#x27;", "look &lt;here&gt;", "rows are padded"):
        assert words in text
    assert f"The 7 chosen ids cover {share:.2%}" in text


def test_sizes_of_a_draft_vocabulary_are_in_order(run):
    shares = {"1000": 0.99, "20000": 1.0, "200": 0.5, "5000": 0.999}
    found = {
        "size": 5000,
        "model_ids": 30000,
        "ids_used": 9,
        "loss_tokens": 10,
        "share": 0.999,
        "share_by_size": shares,
    }
    figures = gather(run.results, 2)
    figures.provenance["draft_vocabulary"] = found
    text = page(figures, "results")
    places = [text.index(words) for words in (">200<", ">1,000<", "<b>5,000</b>", ">20,000<")]
    assert places == sorted(places)


def test_samples_are_counted_beside_rows_where_they_are_more(run):
    summary = json.loads(run.results.summary.read_text())
    assert "samples made of these" not in page(gather(run.results, 2), "results")
    write_json(run.results.summary, summary | {"accepted": 3, "samples": 4321})
    assert re.search(r"samples made of these</span></td><td[^>]*>4,321<", page(gather(run.results, 2), "results"))


def test_names_from_data_cannot_become_markup(run):
    summary = json.loads(run.results.summary.read_text())
    write_json(run.results.summary, {**summary, "reasons": {"<script>alert(1)</script>": 1}})
    assert "<script>" not in page(gather(run.results, 2), "results")


def test_a_missing_record_is_named(run):
    run.results.ready.unlink()
    with pytest.raises(UserError, match=r"ready\.json"):
        gather(run.results, 2)


@pytest.mark.parametrize(("smallest", "step"), [(0.3, 0.5), (1, 1), (3, 5), (7, 10), (40, 50), (200, 200)])
def test_grid_lines_lie_at_round_numbers(smallest, step):
    assert round_step(smallest) == pytest.approx(step)


def test_a_chart_of_nothing_or_of_a_thousand_bars_is_still_a_chart():
    assert bar_chart([], [], [], "x", "y").count("<rect") == 0
    labels = [str(number) for number in range(1000)]
    chart = bar_chart([1.0] * 1000, labels, labels, "x", "y")
    assert chart.count("<rect") == 1000
    assert chart.count('class="x"') <= 13
