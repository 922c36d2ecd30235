"""The whole stage: files in, token files, rejected rows and summary out."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy
import pyarrow.parquet
import pytest
from helpers import tiny_tokenizer
from hidden_states.conversations import duplicates, token_files
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.conversations.duplicates import DigestSet, content_digest
from hidden_states.conversations.token_files import split_evenly
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.store.state_file import sample_key
from hidden_states.store.tokens import check_token_file, iterate_samples

SPECIFICATION = SimpleNamespace(fingerprint="0" * 32, layers=(2, 4, 5), final="pre_norm", dtype="BF16", hidden_size=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.save_model(tmp_path_factory.mktemp("model"))


def settings_for(files: list[Path], **conversations: object) -> dict:
    options = {
        "max_tokens": 1000,
        "min_loss_tokens": 1,
        "max_rejected": 0.5,
        "over_length": "reject",
        "duplicates": "keep",
    }
    return {
        "model": {"trust_remote_code": False},
        "conversations": options | {"files": [str(file) for file in files]} | conversations,
        "extraction": {"chunks": 3, "concurrency": 2},
        "packaging": {"formats": ["speculators"], "link": "hard"},
    }


def conversation(number: int) -> str:
    turns = [("user", "Say it."), ("assistant", "it " * (1 + number % 7))]
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.json"
    first.write_text("\n".join([conversation(0), "{broken", conversation(1), '{"input_ids": [5, 6]}']))
    second.write_text("[" + ",".join([conversation(number) for number in range(2, 8)] + ['{"messages": []}']) + "]")
    return [first, second]


def run(tmp_path: Path, model: Path, corpus: list[Path], **options: object) -> tuple[dict, Results]:
    results = Results(tmp_path / "results")
    settings = settings_for(corpus, **options)
    settings["extraction"]["chunks"] = options.get("chunks", 3)
    return tokenize_corpus(settings, model, results, SPECIFICATION), results


def test_every_row_is_accepted_or_rejected_and_the_totals_add_up(tmp_path, model, corpus) -> None:
    summary, results = run(tmp_path, model, corpus)
    assert (summary["rows_read"], summary["accepted"], summary["rejected"]) == (11, 9, 2)
    assert summary["reasons"] == {"invalid_json": 1, "empty": 1} and summary["ids_without_mask"] == 1
    assert json.loads(results.summary.read_text()) == summary
    rejected = pyarrow.parquet.read_table(results.rejected).to_pylist()
    assert [(Path(row["source_file"]).name, row["source_row"], row["reason"]) for row in rejected] == [
        ("a.jsonl", 1, "invalid_json"),
        ("b.json", 6, "empty"),
    ]
    tables = [pyarrow.parquet.read_table(results.tokens(f"000{chunk}")) for chunk in range(3)]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["sample_id"] for row in rows] == list(range(9))
    assert [row["source_row"] for row in rows] == [0, 2, 3, 0, 1, 2, 3, 4, 5]
    assert sum(row["n_tokens"] for row in rows) == summary["tokens"]
    assert (
        sum(sum(row["loss_mask"]) for row in rows)
        == sum(row["n_loss_tokens"] for row in rows)
        == summary["loss_tokens"]
    )
    assert max(row["n_tokens"] for row in rows) == summary["longest"]
    for row in rows:
        assert row["key"] == sample_key(numpy.array(row["input_ids"], "<i8").tobytes())
        assert len(row["input_ids"]) == len(row["loss_mask"]) == row["n_tokens"]


def test_the_store_reads_what_tokenize_wrote(tmp_path, model, corpus) -> None:
    _, results = run(tmp_path, model, corpus)
    for chunk in ("0000", "0001", "0002"):
        check_token_file(results, chunk)
    assert next(iterate_samples(results.tokens("0000"))).sample_id == 0


def test_equal_input_gives_equal_bytes(tmp_path, model, corpus) -> None:
    first, results = run(tmp_path, model, corpus)
    before = {path.name: path.read_bytes() for path in results.summary.parent.iterdir() if path.is_file()}
    again, results = run(tmp_path, model, corpus)
    assert again == first
    assert {path.name: path.read_bytes() for path in results.summary.parent.iterdir() if path.is_file()} == before


def test_more_chunks_than_rows_gives_empty_chunks_with_all_columns(tmp_path, model, corpus) -> None:
    summary, results = run(tmp_path, model, corpus, chunks=12)
    sizes = [summary["files"][f"{index:04d}.parquet"]["rows"] for index in range(12)]
    assert sizes == [1] * 9 + [0] * 3
    assert pyarrow.parquet.read_schema(results.tokens("0011")).equals(token_files.SCHEMA)


def test_too_many_rejected_rows_stop_the_run_with_the_counts_and_no_token_file(tmp_path, model, corpus) -> None:
    with pytest.raises(UserError, match=r"2 of 11 rows are rejected.*max_rejected = 0.1.*invalid_json 1.*empty 1"):
        run(tmp_path, model, corpus, max_rejected=0.1)
    assert [path.name for path in (tmp_path / "results" / "tokens").iterdir()] == ["rejected.parquet"]


def test_a_corpus_without_a_usable_row_is_refused_whatever_may_be_rejected(tmp_path, model) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"messages": []}\n')
    with pytest.raises(UserError, match="1 of 1 rows are rejected"):
        run(tmp_path, model, [file], max_rejected=1.0)


def test_a_file_that_is_not_json_leaves_no_half_written_results(tmp_path, model, corpus) -> None:
    (tmp_path / "c.jsonl").write_text("hello\n")
    with pytest.raises(UserError, match="c.jsonl is not JSON"):
        run(tmp_path, model, [*corpus, tmp_path / "c.jsonl"])
    assert list((tmp_path / "results" / "tokens").iterdir()) == []


@pytest.fixture
def repeating(tmp_path: Path) -> list[Path]:
    """Eight rows, three of them with tokens and mask of a row before; two have tokens alone in common."""
    rows = [
        conversation(0),
        conversation(1),
        conversation(0),
        json.dumps({"id": "other", "instruction": "Say it.", "output": "it " * 2}),
        '{"input_ids": [5, 6], "loss_mask": [0, 1]}',
        '{"input_ids": [5, 6], "loss_mask": [1, 1]}',
        '{"input_ids": [5, 6]}',
        "{broken",
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(rows))
    return [file]


def test_duplicates_are_kept_where_nothing_else_is_said(tmp_path, model, repeating) -> None:
    summary, _ = run(tmp_path, model, repeating)
    assert (summary["accepted"], summary["reasons"]) == (7, {"invalid_json": 1})


def test_duplicates_are_told_by_tokens_and_mask_and_dropped_where_that_is_asked_for(tmp_path, model, repeating) -> None:
    summary, results = run(tmp_path, model, repeating, duplicates="drop", max_rejected=0.2)
    assert (summary["accepted"], summary["reasons"]) == (4, {"invalid_json": 1, "duplicate": 3})
    rejected = pyarrow.parquet.read_table(results.rejected).to_pylist()
    assert [row["source_row"] for row in rejected if row["reason"] == "duplicate"] == [2, 3, 6]


def test_rows_of_several_samples_are_duplicates_only_as_a_whole() -> None:
    def digest(*samples: list[int]) -> bytes:
        return content_digest((numpy.array(ids), numpy.array(ids) % 2) for ids in samples)

    assert digest([1, 2], [3]) == digest([1, 2], [3])
    assert len({digest([1, 2], [3]), digest([1], [2, 3]), digest([1, 2, 3]), digest([1, 2]), digest([3], [1, 2])}) == 5


def test_the_set_of_digests_grows_and_forgets_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(duplicates, "FIRST_SLOTS", 4)
    seen = DigestSet(tmp_path / "digests")
    digests = [numpy.random.default_rng(number % 500).bytes(16) for number in range(1000)]
    # Of these many begin at one slot, and at the last one.
    digests += [bytes([255] * 8) + bytes([0] * 7) + bytes([number % 50 + 1]) for number in range(100)]
    assert [seen.add(digest) for digest in digests] == [True] * 500 + [False] * 500 + [True] * 50 + [False] * 50
    assert (tmp_path / "digests").stat().st_size == 16 * 2048
    seen.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
def test_chunks_are_contiguous_even_and_never_empty_while_there_are_rows(parts: int) -> None:
    lengths = numpy.random.default_rng(parts).integers(1, 100, 40)
    counts = split_evenly(lengths, parts)
    assert len(counts) == parts and sum(counts) == 40 and min(counts) >= 1
    ends = numpy.cumsum(counts)
    tokens = numpy.diff([0, *numpy.cumsum(lengths)[ends - 1]])
    if parts <= 7:
        assert tokens.max() - tokens.min() <= 2 * lengths.max()


def test_one_giant_row_does_not_starve_the_other_chunks() -> None:
    assert split_evenly(numpy.array([1000, 1, 1, 1]), 4) == [1, 1, 1, 1]
    assert split_evenly(numpy.array([1, 1, 1, 1000]), 3) == [2, 1, 1]
    assert split_evenly(numpy.array([]), 2) == [0, 0]
