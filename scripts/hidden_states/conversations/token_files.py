"""Accepted samples → ``tokens/{chunk}.parquet``: spooled while the tokens are counted, then split.

| column | type | meaning |
|---|---|---|
| sample_id | int64 | running number of the samples, from 0 |
| key | string | hash of the ids: the name of the state in the store |
| source_file | string | file the row came from |
| source_row | int64 | its number among the rows of that file, from 0 |
| input_ids | list<int32> | [num_tokens] |
| loss_mask | list<int8> | [num_tokens], 1 where the assistant speaks |
| n_tokens, n_loss_tokens | int32 | number of ids, and of those with loss |
| turn | int32 | number of the last message with loss where a row gives several samples, from 0; else -1 |

Chunks are contiguous in input order and balanced by tokens. Equal input gives equal bytes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from hidden_states.conversations.batches import Sample
from hidden_states.conversations.rows import Row
from hidden_states.files import atomic_path
from hidden_states.store.state_file import sample_key

SCHEMA = pyarrow.schema(
    [
        ("sample_id", pyarrow.int64()),
        ("key", pyarrow.string()),
        ("source_file", pyarrow.string()),
        ("source_row", pyarrow.int64()),
        ("input_ids", pyarrow.list_(pyarrow.int32())),
        ("loss_mask", pyarrow.list_(pyarrow.int8())),
        ("n_tokens", pyarrow.int32()),
        ("n_loss_tokens", pyarrow.int32()),
        ("turn", pyarrow.int32()),
    ]
)
REJECTED_SCHEMA = pyarrow.schema(
    [
        ("source_file", pyarrow.string()),
        ("source_row", pyarrow.int64()),
        ("reason", pyarrow.string()),
        ("detail", pyarrow.string()),
    ]
)
GROUP_TOKENS = 1 << 20
GROUP_ROWS = 4096
"""A row group of a token file ends when it has this many tokens or rows."""


class Spool:
    """Accepted samples on their way to the token files, in a file of Arrow batches; remembers only their lengths."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = pyarrow.ipc.new_file(path, SCHEMA)
        self._lengths: list[numpy.ndarray] = []
        self.num_rows = self.num_tokens = self.num_loss_tokens = self.longest = 0

    def add(self, samples: list[tuple[Row, Sample]]) -> None:
        """Append a batch. Its rows get the next sample ids."""
        if not samples:
            return
        lengths = numpy.array([sample.input_ids.size for _, sample in samples], dtype=numpy.int32)
        losses = numpy.array([sample.loss_mask.sum() for _, sample in samples], dtype=numpy.int32)
        ids = numpy.concatenate([sample.input_ids for _, sample in samples])
        masks = numpy.concatenate([sample.loss_mask for _, sample in samples])
        offsets = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
        columns = [
            pyarrow.array(numpy.arange(self.num_rows, self.num_rows + len(samples))),
            pyarrow.array([sample_key(sample.input_ids.astype("<i8").tobytes()) for _, sample in samples]),
            pyarrow.array([row.source_file for row, _ in samples]),
            pyarrow.array([row.source_row for row, _ in samples], pyarrow.int64()),
            pyarrow.ListArray.from_arrays(offsets, pyarrow.array(ids.astype(numpy.int32))),
            pyarrow.ListArray.from_arrays(offsets, pyarrow.array(masks)),
            pyarrow.array(lengths),
            pyarrow.array(losses),
            pyarrow.array([sample.turn for _, sample in samples], pyarrow.int32()),
        ]
        self._writer.write_batch(pyarrow.record_batch(columns, schema=SCHEMA))
        self._lengths.append(lengths)
        self.num_rows += len(samples)
        self.num_tokens += int(lengths.sum())
        self.num_loss_tokens += int(losses.sum())
        self.longest = max(self.longest, int(lengths.max()))

    def close(self) -> None:
        self._writer.close()

    def lengths(self) -> numpy.ndarray:
        """int32 [num_rows], tokens of each sample."""
        return numpy.concatenate(self._lengths) if self._lengths else numpy.zeros(0, numpy.int32)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """What was added, in order; after ``close``."""
        with pyarrow.OSFile(str(self._path)) as source, pyarrow.ipc.open_file(source) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)


def split_evenly(lengths: numpy.ndarray, parts: int) -> list[int]:
    """How many rows each of ``parts`` contiguous chunks gets, so that their tokens are as even as whole rows allow.

    No chunk is empty while there are rows enough; with fewer rows than chunks, the last chunks are.

    >>> split_evenly(numpy.array([5, 5, 10, 1, 9]), 3)
    [2, 1, 2]
    """
    total, ends = numpy.cumsum(lengths, dtype=numpy.int64), []
    begin = 0
    for part in range(1, parts + 1):
        if begin >= lengths.size:
            end = begin
        elif part == parts:
            end = lengths.size
        else:
            target = total[-1] * part / parts
            end = int(numpy.searchsorted(total - lengths / 2, target, side="right"))
            end = max(begin + 1, min(end, lengths.size - (parts - part)))
        ends.append(end)
        begin = end
    return numpy.diff([0, *ends]).tolist()


def write_token_file(path: Path, batches: list[pyarrow.RecordBatch] | Iterator[pyarrow.RecordBatch]) -> None:
    """Write the rows of ``batches`` under a temporary name, read their number back, rename."""
    with atomic_path(path) as temporary:
        expected = 0
        with pyarrow.parquet.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
            for group in _groups(batches):
                writer.write_table(group)
                expected += group.num_rows
        found = pyarrow.parquet.read_metadata(temporary).num_rows
        if found != expected:
            raise RuntimeError(f"bug: {path} has {found} rows instead of {expected}")


def chunk_batches(batches: Iterator[pyarrow.RecordBatch], counts: list[int]) -> Iterator[Iterator[pyarrow.RecordBatch]]:
    """One iterator for each chunk; each must be used up before the next."""
    left: list[pyarrow.RecordBatch] = []

    def take(count: int) -> Iterator[pyarrow.RecordBatch]:
        while count:
            batch = left.pop() if left else next(batches)
            if batch.num_rows > count:
                left.append(batch.slice(count))
                batch = batch.slice(0, count)
            count -= batch.num_rows
            yield batch

    for count in counts:
        yield take(count)


def _groups(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    pending: list[pyarrow.RecordBatch] = []
    rows = tokens = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        tokens += pyarrow.compute.sum(batch.column("n_tokens")).as_py() or 0
        if rows >= GROUP_ROWS or tokens >= GROUP_TOKENS:
            yield pyarrow.Table.from_batches(pending, SCHEMA)
            pending, rows, tokens = [], 0, 0
    if pending:
        yield pyarrow.Table.from_batches(pending, SCHEMA)
