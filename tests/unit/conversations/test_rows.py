"""Reading files: every row comes out, good or with its reason; files that hold none are refused by name."""

import json
import os
from pathlib import Path

import pytest
from hidden_states.conversations import json_array, rows
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.sources import find_sources
from hidden_states.errors import UserError


def read(path: Path, content: bytes | str) -> list[object]:
    """The values of the file's rows; a rejected row's reason instead."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = list(rows.read_rows(path))
    assert [row.source_row for row in found] == list(range(len(found)))
    return [row.value.reason if isinstance(row.value, Rejected) else row.value for row in found]


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1}\n{"a": 2}\n',
        '{"a": 1}\n{"a": 2}',
        '{"a": 1}\r\n{"a": 2}\r\n',
        '\ufeff{"a": 1}\n\n   \n{"a": 2}\n\n',
        '\ufeff{"a": 1}\r\n\ufeff{"a": 2}\r\n\ufeff',
        '[{"a": 1}, {"a": 2}]',
        '\ufeff \n[\n{"a": 1}\n,\n{"a": 2}\n]\n',
        '[{"a": 1}, {"a": 2},]',
    ],
)
def test_lines_and_arrays_give_the_same_rows(tmp_path: Path, content: str) -> None:
    assert read(tmp_path / "f.json", content) == [{"a": 1}, {"a": 2}]


def test_one_indented_object_is_one_row(tmp_path: Path) -> None:
    assert read(tmp_path / "f.json", json.dumps({"a": [1, 2]}, indent=2)) == [{"a": [1, 2]}]


def test_a_long_beginning_of_white_space_hides_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "f.json", " \n" * 100_000 + '[{"a": 1}]') == [{"a": 1}]


def test_only_the_broken_line_is_lost(tmp_path: Path) -> None:
    content = b'{"a": 1}\nnot json\n{"a": \x00 2}\n{"a": 3}\n{"a": '
    assert read(tmp_path / "f.jsonl", content) == [{"a": 1}, "invalid_json", "invalid_json", {"a": 3}, "invalid_json"]


def test_only_the_broken_element_of_an_array_is_lost(tmp_path: Path) -> None:
    content = '[{"a": "]}"}, {"b": [1, {"c": nope}], "d": "}"}, , 5, {"a": 2}]'
    assert read(tmp_path / "f.json", content) == [{"a": "]}"}, "invalid_json", "invalid_json", 5, {"a": 2}]


@pytest.mark.parametrize("rest", [', {"a": 2', ', {"a": "2', "", "] {}", ' {"a": 2}]'])
def test_an_array_that_breaks_off_keeps_its_rows_and_counts_one_rejected(tmp_path: Path, rest: str) -> None:
    assert read(tmp_path / "f.json", '[{"a": 1}' + rest) == [{"a": 1}, "invalid_json"]


def test_an_array_reads_the_same_whatever_the_size_of_the_blocks(tmp_path: Path, monkeypatch) -> None:
    values = [{"text": "ü" * n + '\\"]}', "n": [n, {"x": None}]} for n in range(12)] + [12345, "text", True]
    content = json.dumps(values, ensure_ascii=False, indent=1).replace('"n"', "nope", 1)
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(json_array, "BLOCK_BYTES", size)
        assert read(tmp_path / "f.json", content) == ["invalid_json", *values[1:]]


def test_a_row_beyond_all_measure_is_rejected_and_the_next_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 50)
    content = '{"a": 1}\n{"a": "' + "x" * 100 + '"}\n{"a": 2}\n'
    assert read(tmp_path / "f.jsonl", content) == [{"a": 1}, "invalid_json", {"a": 2}]


@pytest.mark.parametrize("row", ["[" * 100_000, "1" * 5000])
def test_depth_and_size_of_numbers_do_not_crash(tmp_path: Path, row: str) -> None:
    assert read(tmp_path / "f.jsonl", '{"a": 1}\n' + row + "\n") == [{"a": 1}, "invalid_json"]
    assert read(tmp_path / "g.json", '[{"a": 1}, ' + row + "]")[0] == {"a": 1}


def test_bytes_that_are_not_utf8_stay_in_their_row(tmp_path: Path) -> None:
    for name, content in (("f.jsonl", b'{"a": "\xff"}\n{"a": 2}'), ("f.json", b'[{"a": "\xff"}, {"a": 2}]')):
        assert read(tmp_path / name, content) == [{"a": "\udcff"}, {"a": 2}]


@pytest.mark.parametrize(
    "content", [b"", b"\xef\xbb\xbf \n", b"[]", b"plain text\nof two lines\n", b"\x89PNG\r\n\x1a\n\0\0", b"["]
)
def test_a_file_without_any_row_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match="odd.json is (empty|not JSON)"):
        read(tmp_path / "odd.json", content)


def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path} cannot be read"):
        list(rows.read_rows(tmp_path))


def test_files_come_in_the_order_of_the_setting_and_each_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.json", "[x].json"):
        (tmp_path / name).touch()
    patterns = [str(tmp_path / name) for name in ("c.json", "*.jsonl", "a.jsonl", "[x].json")]
    assert [Path(source.name).name for source in find_sources(patterns)] == ["c.json", "a.jsonl", "b.jsonl", "[x].json"]


def test_a_file_whose_name_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_text("{}")
    with pytest.raises(UserError, match=r"udcff.jsonl is not UTF-8"):
        find_sources([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "message"),
    [("no.json", "there is no file"), ("no*", "no file matches"), ("", "holds no file of a known kind")],
)
def test_a_setting_without_files_is_refused_by_name(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"conversations.files.*{message}"):
        find_sources([str(tmp_path / name)])
