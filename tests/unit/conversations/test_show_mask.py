"""``hidden-states show-mask``: a row with its mask, for a person."""

import json
from pathlib import Path

import pytest
import yaml
from helpers import tiny_tokenizer
from helpers.tiny_tokenizer import FORGETTING
from hidden_states.cli import main
from hidden_states.conversations.batches import Sample
from hidden_states.conversations.segments import mask_segments

ROWS = [
    {"messages": [{"role": "user", "content": "Hi \x1b[31m 東"}, {"role": "assistant", "content": "Hello 😀"}]},
    {"messages": [{"role": "user", "content": "Hi"}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "<think>x</think>b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "<think>y</think>d"},
        ]
    },
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny_tokenizer.save_model(tmp_path / "model", FORGETTING)
    (tmp_path / "data").mkdir()
    for name in ("one.jsonl", "two.jsonl"):
        lines = [json.dumps(row) for row in (ROWS if name == "one.jsonl" else ROWS[2:])]
        (tmp_path / "data" / name).write_text("\n".join(lines))
    settings = {"model": {"path": "model"}, "conversations": {"files": ["data/*.jsonl"]}}
    file = tmp_path / "my.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def show(config: Path, *arguments: str) -> int:
    return main(["show-mask", "--configfile", str(config), "--results", str(config.parent / "results"), *arguments])


def test_what_has_loss_is_coloured_and_the_rest_is_dim(config, capsys, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert show(config, "--row", "0") == 0
    out = capsys.readouterr().out
    assert "\x1b[1;32mHello 😀<|end|>\x1b[0m" in out
    assert "\x1b[2m<|user|>\nHi \\x1b[31m 東<|end|>\n<|assistant|>\n\x1b[0m" in out  # its own escapes are not obeyed


def test_without_colour_it_is_in_brackets(config, capsys, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(config, "--row", "0") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "<|assistant|>\n⟦Hello 😀<|end|>⟧\n" in out


def test_each_sample_of_a_row_is_shown_with_its_turn(config, capsys, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(config, "--row", "0", "--file", "two.jsonl") == 0
    out = capsys.readouterr().out
    assert "two.jsonl row 0" in out
    assert "sample 1 of 2, up to turn 1" in out and "⟦<think>x</think>b<|end|>⟧" in out
    assert "sample 2 of 2, up to turn 3" in out and "b<|end|>\n<|user|>" in out and "⟦<think>y</think>d<|end|>⟧" in out


def test_a_rejected_row_says_why(config, capsys) -> None:
    assert show(config, "--row", "1") == 0
    out = capsys.readouterr().out
    assert "rejected: no_assistant_turn: the roles are user" in out and "Nobody answers" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--row", "3"], "one.jsonl has 3 rows, numbered from 0; there is no row 3"),
        (["--row", "-1"], "there is no row -1"),
        (["--row", "0", "--file", "wo.jsonl"], "--file wo.jsonl names no input"),
        (["--row", "0", "--file", "other"], "one.jsonl"),
    ],
)
def test_a_row_that_is_not_there_is_the_users_to_put_right(config, caplog, arguments, words) -> None:
    assert show(config, *arguments) == 1
    assert words in caplog.text


def test_segments_joined_are_the_text_also_where_a_token_alone_loses_its_space() -> None:
    import numpy

    def decode(ids: list[int]) -> str:
        return "".join(["▁a", "▁b", "▁c", "▁d"][number] for number in ids).replace("▁", " ").lstrip()

    sample = Sample(numpy.arange(4), numpy.array([0, 1, 1, 0], dtype=numpy.int8))
    assert mask_segments(sample, decode) == [("a", False), (" b c", True), (" d", False)]
