"""Rows of Arrow tables as the Python values that the same rows would be in JSON."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pyarrow.parquet

from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.shapes import ROW_KEYS

BATCH_ROWS = 64
BUFFER_BYTES = 1 << 20
LISTS_OF_TURNS = ("conversations", "messages", "prompt", "completion")

Convert = Callable[[Any], Any]


def known_columns(names: list[str]) -> list[str]:
    """The columns to be read: those that mean something here, or all where none does, so that a rejected row can tell
    its keys."""
    return [name for name in names if name.lower() in ROW_KEYS] or names


def parquet_batches(file: pyarrow.parquet.ParquetFile) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a file opened by ``open_parquet``, in batches; what is held at a time is one of them."""
    columns = known_columns(file.schema_arrow.names)
    for group in range(file.num_row_groups):
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)


def open_parquet(path: str) -> pyarrow.parquet.ParquetFile:
    """Columns are read by pages, not whole, and pages with a checksum are checked. Raises ArrowException or OSError."""
    return pyarrow.parquet.ParquetFile(
        path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )


def batch_rows(batch: pyarrow.RecordBatch | pyarrow.Table) -> list[dict[str, Any] | Rejected]:
    """One value a row: a dict, or why there is none."""
    try:
        return _rows(batch)
    except (ValueError, RecursionError):  # one row that is not UTF-8, or not JSON, must not cost the others
        if batch.num_rows > 1:
            return [row for index in range(batch.num_rows) for row in batch_rows(batch.slice(index, 1))]
    try:
        return _rows(batch)
    except UnicodeDecodeError as error:
        return [Rejected("invalid_text", f"a column holds bytes that are not UTF-8: {error}")]
    except (ValueError, RecursionError) as error:
        return [Rejected("invalid_json", f"a column of JSON: {error}")]


def _rows(batch: pyarrow.RecordBatch | pyarrow.Table) -> list[dict[str, Any]]:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = _values(column)
        if name.lower() in LISTS_OF_TURNS:
            values = [_turns(value) for value in values]
        columns.append(values)
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any]:
    if isinstance(column, pyarrow.ChunkedArray):
        return [value for chunk in column.chunks for value in _values(chunk)]
    if isinstance(column, pyarrow.ListArray | pyarrow.LargeListArray) and _is_plain_integers(column):
        values, offsets = column.values.to_numpy(), column.offsets.to_pylist()
        return [
            values[begin:end].tolist() if is_valid else None
            for begin, end, is_valid in zip(offsets, offsets[1:], column.is_valid().to_pylist(), strict=False)
        ]
    convert = _conversion(column.type)
    values = column.to_pylist()
    return values if convert is None else [convert(value) for value in values]


def _is_plain_integers(column: pyarrow.ListArray | pyarrow.LargeListArray) -> bool:
    """Long lists of ids: element by element they would take most of the time."""
    return pyarrow.types.is_integer(column.type.value_type) and column.values.null_count == 0


def _conversion(kind: pyarrow.DataType) -> Convert | None:
    """What has to be done to the Python value of an Arrow type: texts of JSON are parsed, and the nulls of a struct,
    which stand for keys that other rows have, are left out."""
    if isinstance(kind, pyarrow.JsonType):
        return lambda value: None if value is None else json.loads(value)
    if pyarrow.types.is_struct(kind):
        inner = {field.name: convert for field in kind if (convert := _conversion(field.type))}
        return lambda value: None if value is None else _without_nulls(value, inner)
    if pyarrow.types.is_nested(kind) and hasattr(kind, "value_type") and (convert := _conversion(kind.value_type)):
        return lambda value: None if value is None else [convert(item) for item in value]
    return None


def _without_nulls(value: dict[str, Any], inner: dict[str, Convert]) -> dict[str, Any]:
    return {key: inner[key](item) if key in inner else item for key, item in value.items() if item is not None}


def _turns(value: Any) -> Any:
    """The older form of the datasets package, one list for each key, as a list of turns."""
    if not isinstance(value, dict) or not value:
        return value
    columns = list(value.values())
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return value
    return [
        {key: item for key, item in zip(value, turn, strict=True) if item is not None}
        for turn in zip(*columns, strict=True)
    ]
