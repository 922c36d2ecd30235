"""What ``conversations.files`` may name, and that every kind of input gives the rows that the same JSON lines give."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rows import Input, Row, read_rows
from hidden_states.conversations.shapes import read_shape
from hidden_states.conversations.sources import absolute_entry, find_sources, watched_files
from hidden_states.errors import UserError

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [2]}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "c"},
            {"role": "assistant", "content": "b"},
        ],
        "tools": [TOOL],
    },
    {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
    {"instruction": "a", "input": "i", "output": "b"},
    {"prompt": "a", "completion": "b"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the datasets package converts goes here and not into the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def all_rows(*entries: object) -> list[Row]:
    found = [row for source in find_sources(map(str, entries)) for row in Input(source).rows()]
    for name in {row.source_file for row in found}:
        numbers = [row.source_row for row in found if row.source_file == name]
        assert numbers == list(range(len(numbers)))
    return found


def shapes(*entries: object) -> list[object]:
    return [read_shape(row.value) for row in all_rows(*entries)]


WANTED = [read_shape(row) for row in ROWS]


def numbers(*entries: object) -> list[object]:
    """The values of rows such as {"input_ids": [5]}; the reason of a rejected one."""
    return [
        row.value.reason if isinstance(row.value, Rejected) else row.value["input_ids"][0] for row in all_rows(*entries)
    ]


def write_numbers(path: Path, *values: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"input_ids": [value]}) + "\n" for value in values))
    return path


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, "zstd", asbytes=True)


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(LINES),
        zstd(LINES),
        gzip.compress(LINES[:40]) + gzip.compress(LINES[40:]),
        zstd(LINES[:40]) + zstd(LINES[40:]),
        struct.pack("<II", 0x184D2A53, 3) + b"abc" + zstd(LINES),
        gzip.compress(b"\xef\xbb\xbf \n" + json.dumps(ROWS, indent=1).encode()),
        zstd(json.dumps(ROWS).encode()),
    ],
    ids=["gzip", "zstd", "gzip of two", "zstd of two", "zstd behind a skipped frame", "gzip of an array", "zstd array"],
)
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json"])
def test_an_archive_is_told_by_its_content_and_gives_the_same_rows(tmp_path: Path, packed: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(packed)
    assert shapes(tmp_path / name) == WANTED


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("array", [False, True])
def test_an_archive_that_breaks_off_keeps_every_row_before_and_counts_one_rejected(
    tmp_path: Path, pack: Any, array: bool
) -> None:
    rows = [json.dumps({"input_ids": [number], "text": f"{hash((number, 'x'))}"}) for number in range(20_000)]
    content = ("[" + ",".join(rows) + "]" if array else "\n".join(rows)).encode()
    packed = pack(content)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    found = all_rows(tmp_path / "cut")
    assert [row.value["input_ids"] for row in found[:-1]] == [[number] for number in range(len(found) - 1)]
    assert len(found) > 7_000
    assert found[-1].value.reason == "invalid_json" and "breaks off" in found[-1].value.detail


def test_an_archive_cut_just_behind_a_row_has_a_rejected_row_too(tmp_path: Path) -> None:
    """Only the check sum at its end is missing."""
    (tmp_path / "cut").write_bytes(gzip.compress(b'{"input_ids": [1]}\n{"input_ids": [2]}\n')[:-8])
    assert numbers(tmp_path / "cut") == [1, 2, "invalid_json"]


def test_an_archive_with_a_flipped_bit_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(LINES))
    packed[-6] ^= 1
    (tmp_path / "rows.gz").write_bytes(packed)
    with pytest.raises(UserError, match="rows.gz cannot be read: the archive breaks off or is damaged"):
        all_rows(tmp_path / "rows.gz")


@pytest.mark.parametrize("content", [gzip.compress(LINES)[:12], zstd(LINES)[:8], b"PAR1 and nothing else", b"PAR1"])
def test_an_archive_or_table_of_which_nothing_can_be_read_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cut").write_bytes(content)
    with pytest.raises(UserError, match="cut cannot be read"):
        all_rows(tmp_path / "cut")


def test_what_has_been_read_of_an_input_grows_to_its_size(tmp_path: Path) -> None:
    table = pyarrow.table({"input_ids": [[number] for number in range(500)]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    write_numbers(tmp_path / "rows.jsonl", *range(500))
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    for source in find_sources([str(tmp_path)]):
        positions = [row.position for row in Input(source).rows()]
        assert positions == sorted(positions) and positions[0] > 0
        assert positions[-1] == Input(source).num_bytes


def test_a_parquet_file_of_many_shapes_gives_the_same_rows_as_json_lines(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_same_keys(ROWS)), tmp_path / "x", row_group_size=2)
    assert shapes(tmp_path / "x") == WANTED


def _same_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


@pytest.mark.parametrize("ids", [pyarrow.int32(), pyarrow.uint16(), pyarrow.int64()])
@pytest.mark.parametrize("mask", [pyarrow.int8(), pyarrow.bool_()])
@pytest.mark.parametrize("lists", [pyarrow.list_, pyarrow.large_list])
def test_typed_lists_of_ids_are_read_in_whatever_width_they_have(tmp_path: Path, ids, mask, lists) -> None:
    columns = {
        "input_ids": pyarrow.array([[5, 6], None, [7]], lists(ids)),
        "loss_mask": pyarrow.array([[False, True], None, None], lists(pyarrow.bool_())).cast(lists(mask)),
        "prompt": [None, "a", None],
        "completion": [None, "b", None],
        "embedding": [[0.5], [0.5], [0.5]],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    wanted = [{"input_ids": [5, 6], "loss_mask": [0, 1]}, {"prompt": "a", "completion": "b"}, {"input_ids": [7]}]
    assert shapes(tmp_path / "x.parquet") == [read_shape(row) for row in wanted]


def test_a_null_among_the_ids_costs_its_row_only(tmp_path: Path) -> None:
    table = pyarrow.table({"input_ids": pyarrow.array([[5, None], [6]], pyarrow.list_(pyarrow.int32()))})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    bad, good = (row.value for row in all_rows(tmp_path / "x.parquet"))
    assert read_shape(good).input_ids == [6]
    with pytest.raises(Rejected, match="unknown_shape"):
        read_shape(bad)


def test_a_text_in_a_table_that_is_not_utf8_costs_its_row_only(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff", b"c"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": texts, "completion": texts}), tmp_path / "x.parquet")
    good, bad, last = (row.value for row in all_rows(tmp_path / "x.parquet"))
    assert (good["prompt"], bad.reason, last["prompt"]) == ("a", "invalid_text", "c")


def test_a_table_without_a_known_column_names_its_columns(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "answer": ["b"]}), tmp_path / "x.parquet")
    with pytest.raises(Rejected, match="its keys: question, answer"):
        shapes(tmp_path / "x.parquet")


def test_a_table_damaged_in_its_middle_keeps_the_rows_before_and_counts_one_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"input_ids": [[number] * 10 for number in range(4000)]})
    pyarrow.parquet.write_table(table, path, row_group_size=1000, use_dictionary=False)
    content = bytearray(path.read_bytes())
    begin = pyarrow.parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    content[begin : begin + 60] = bytes(60)
    path.write_bytes(content)
    found = numbers(path)
    assert found == [*range(2000), "invalid_json"]


def test_turns_as_one_list_a_key_are_turns_all_the_same(tmp_path: Path) -> None:
    """Data sets of older versions of the datasets package are stored in this form."""
    turns = {"from": ["human", "gpt"], "value": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"conversations": turns}]), tmp_path / "x.parquet")
    assert shapes(tmp_path / "x.parquet") == WANTED[:1]


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    import datasets

    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "rows.jsonl").write_bytes(LINES)
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "made cache"))


def test_a_folder_of_save_to_disk_is_a_data_set(tmp_path: Path, dataset: Any) -> None:
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    assert shapes(tmp_path / "saved") == WANTED
    assert {row.source_file for row in all_rows(tmp_path / "saved")} == {str(tmp_path / "saved")}
    positions = [row.position for row in all_rows(tmp_path / "saved")]
    assert positions == sorted(positions) and positions[-1] == Input(*find_sources([str(tmp_path / "saved")])).num_bytes


def test_a_data_set_that_was_shuffled_and_selected_keeps_its_order(tmp_path: Path, dataset: Any) -> None:
    dataset.select([4, 0, 3]).save_to_disk(tmp_path / "saved")
    assert shapes(tmp_path / "saved") == [WANTED[4], WANTED[0], WANTED[3]]


def test_of_several_splits_train_is_read_or_one_must_be_named(tmp_path: Path, dataset: Any) -> None:
    import datasets

    first, second = dataset.select([0]), dataset.select([3, 4])
    datasets.DatasetDict({"test": second, "train": first}).save_to_disk(tmp_path / "a")
    datasets.DatasetDict({"left": first, "right": second}).save_to_disk(tmp_path / "b")
    assert shapes(tmp_path / "a") == WANTED[:1]
    assert shapes(f"hf:{tmp_path / 'a'}::test") == shapes(tmp_path / "a" / "test") == WANTED[3:]
    with pytest.raises(UserError, match=f"has the splits left, right; name one of them, such as hf:{tmp_path}/b::left"):
        shapes(tmp_path / "b")


def test_a_data_set_by_name_is_loaded_with_its_subset_and_split(tmp_path: Path) -> None:
    folder = tmp_path / "named"
    for number, name in enumerate(("one/train", "one/test", "two/train")):
        write_numbers(folder / f"{name}.jsonl", number, 10 + number, 20 + number)
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train.jsonl\n"
        for name in ("one", "two")
    ).replace("one/train.jsonl\n", "one/train.jsonl\n  - split: test\n    path: one/test.jsonl\n")
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert numbers(f"hf:{folder}:one") == [0, 10, 20]
    assert numbers(f"hf:{folder}:one:test") == [1, 11, 21]
    assert numbers(f"hf:{folder}:two:train[1:]") == [12, 22]
    with pytest.raises(UserError, match="cannot be loaded: ValueError: Config name is missing"):
        numbers(f"hf:{folder}")
    with pytest.raises(UserError, match="cannot be loaded: ValueError: BuilderConfig 'three' not found"):
        numbers(f"hf:{folder}:three")
    with pytest.raises(UserError, match='cannot be loaded: ValueError: Unknown split "dev"'):
        numbers(f"hf:{folder}:one:dev")


def test_a_data_set_that_is_not_there_is_refused_in_one_plain_message(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"the data set hf:/no/where cannot be loaded: FileNotFoundError.*hf:name"
    ) as error:
        all_rows("hf:/no/where")
    assert "\n" not in str(error.value)
    write_numbers(tmp_path / "broken" / "a.jsonl").write_text("no json\n")
    with pytest.raises(UserError, match=r"broken cannot be loaded"):
        all_rows(f"hf:{tmp_path / 'broken'}")


def test_a_folder_is_read_with_all_below_it_by_name_but_for_hidden_and_other_files(tmp_path: Path) -> None:
    write_numbers(tmp_path / "b.jsonl", 3)
    write_numbers(tmp_path / "a" / "z.ndjson", 2)
    write_numbers(tmp_path / "a" / "B.JSON", 1)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"input_ids": [4]}'))
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[5]]}), tmp_path / "d.parquet")
    for name in (".hidden.jsonl", ".git/x.json", "README.md", "e.jsonl.bak", "dataset_info.json", "f.gz"):
        write_numbers(tmp_path / name, 99)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert watched_files([str(tmp_path)]) == [
        str(tmp_path / name) for name in ("a/B.JSON", "a/z.ndjson", "b.jsonl", "c.jsonl.gz", "d.parquet")
    ]


def test_lists_of_files_folders_and_patterns_keep_their_order_and_name_each_once(tmp_path: Path) -> None:
    for number, name in enumerate(("one/a.jsonl", "one/b.jsonl", "two/a.jsonl", "c.jsonl")):
        write_numbers(tmp_path / name, number)
    assert numbers(tmp_path / "c.jsonl", tmp_path / "t*", tmp_path / "**" / "*.jsonl") == [3, 2, 0, 1]


def test_the_files_of_data_sets_are_watched_and_what_is_missing_is_passed_over(tmp_path: Path, dataset: Any) -> None:
    dataset.save_to_disk(tmp_path / "saved")
    files = [
        str(tmp_path / "saved" / name) for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")
    ]
    assert watched_files([str(tmp_path / "saved"), "hf:owner/name", str(tmp_path / "no")]) == files
    assert watched_files([f"hf:{tmp_path / 'made'}"]) == [str(tmp_path / "made" / "rows.jsonl")]


def test_paths_are_looked_up_beside_the_configuration_and_names_of_data_sets_are_not(tmp_path: Path) -> None:
    (tmp_path / "owner" / "local").mkdir(parents=True)
    for entry, wanted in {
        "data/*.jsonl": f"{tmp_path}/data/*.jsonl",
        "hf:owner/name": "hf:owner/name",
        "hf:name:subset:train[:10]": "hf:name:subset:train[:10]",
        "hf:owner/local::test": f"hf:{tmp_path}/owner/local::test",
        "hf:./made": f"hf:{tmp_path}/made",
        "hf:/made:sub": "hf:/made:sub",
    }.items():
        assert absolute_entry(entry, tmp_path) == wanted


def test_a_file_read_by_its_path_alone_needs_no_setting(tmp_path: Path) -> None:
    assert [row.value for row in read_rows(write_numbers(tmp_path / "a", 1))] == [{"input_ids": [1]}]
