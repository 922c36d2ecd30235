"""The table of a speculators dataset, one arrow file per chunk, as Hugging Face's ``save_to_disk`` lays it out.

| column | type | meaning |
|---|---|---|
| ``input_ids`` | list<int64> | the sample's token ids |
| ``loss_mask`` | list<int64> | 1 where the trainer's loss counts the token |
| ``seq_len`` | int64 | number of tokens |
| ``sample_id``, ``key`` | int64, string | the sample in this run's tokens and manifests |
| ``source_file``, ``source_row`` | string, int64 | the conversation it was made from |

The trainer is given the first three; the others are there for people and for checks.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.packaging.record import Record
from hidden_states.packaging.survey import ChunkRows, Survey, manifest_batches
from hidden_states.store.tokens import check_token_file

LAYOUT_VERSION = "1"
"""Part of every shard's source: a change of the layout makes all shards anew."""

ROWS_PER_BATCH = 256
TRAINER_COLUMNS = ["input_ids", "loss_mask", "seq_len"]
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int64())),
        ("loss_mask", pa.list_(pa.int64())),
        ("seq_len", pa.int64()),
        ("sample_id", pa.int64()),
        ("key", pa.string()),
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
    ]
)


def shard_name(index: int, num_shards: int) -> str:
    return f"data-{index:05d}-of-{num_shards:05d}.arrow"


def write_shards(results: Results, survey: Survey, token_checksums: dict[str, str], record: Record) -> None:
    """Bring every shard, ``dataset_info.json`` and ``state.json`` up to date, and remove shards of another count.

    ``token_checksums`` are those of the token files, by chunk, as the tokens' summary has them. Raises UserError when
    a shard has to be made from a token file that is not the one in the summary.
    """
    names = [shard_name(index, len(survey.chunks)) for index in range(len(survey.chunks))]
    identity = hashlib.blake2b(digest_size=8)
    for name, chunk in zip(names, survey.chunks, strict=True):
        checksum = token_checksums[chunk.chunk]
        source = hashlib.blake2b(f"{LAYOUT_VERSION}|{checksum}|{chunk.digest}".encode(), digest_size=16).hexdigest()
        identity.update(f"{name}|{source}\n".encode())

        def make(stream: Any, chunk: ChunkRows = chunk) -> None:
            check_token_file(results, chunk.chunk)
            schema = SCHEMA.with_metadata({"huggingface": json.dumps({"info": {"features": features()}})})
            with pa.ipc.new_stream(stream, schema) as writer:
                for batch in _packaged_rows(results, chunk.chunk):
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))

        record.write(name, make, source)
    for path in record.folder.glob("data-*.arrow"):
        if path.name not in names:
            record.begin_change()
            path.unlink()
    record.write_bytes("dataset_info.json", _json(_dataset_info()))
    record.write_bytes("state.json", _json(_state(names, identity.hexdigest())))


def packaged_ids(results: Results, chunk: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Batches of the packaged rows' flat ``input_ids`` and ``loss_mask``, both of one length."""
    for batch in _packaged_rows(results, chunk):
        yield pc.list_flatten(batch.column("input_ids")), pc.list_flatten(batch.column("loss_mask"))


def _packaged_rows(results: Results, chunk: str) -> Iterator[pa.RecordBatch]:
    """The token rows whose samples succeeded, with the columns and types of SCHEMA."""
    succeeded = _succeeded(results, chunk)
    columns = ["input_ids", "loss_mask", "n_tokens", "sample_id", "key", "source_file", "source_row"]
    with pq.ParquetFile(results.tokens(chunk)) as file:
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=columns):
            mask = pa.array([next(succeeded) for _ in range(batch.num_rows)], pa.bool_())
            batch = batch.select(columns).filter(mask).rename_columns(SCHEMA.names).cast(SCHEMA)
            for column in ("input_ids", "loss_mask"):
                if not pc.list_value_length(batch.column(column)).equals(batch.column("seq_len").cast(pa.int32())):
                    raise UserError(f"{results.tokens(chunk)}: a row's {column} does not have n_tokens entries.")
            if batch.num_rows:
                yield batch


def _succeeded(results: Results, chunk: str) -> Iterator[bool]:
    for batch in manifest_batches(results, chunk, ["status"]):
        yield from (status == "ok" for status in batch["status"])


def features() -> dict[str, Any]:
    """The columns as the ``datasets`` library (4 and later) writes them."""

    def feature(kind: pa.DataType) -> dict[str, Any]:
        if pa.types.is_list(kind):
            return {"feature": feature(kind.value_type), "_type": "List"}
        return {"dtype": str(kind), "_type": "Value"}

    return {column.name: feature(column.type) for column in SCHEMA}


def _dataset_info() -> dict[str, Any]:
    return {"citation": "", "description": "", "features": features(), "homepage": "", "license": ""}


def _state(names: list[str], fingerprint: str) -> dict[str, Any]:
    """``_format_type`` must be ``torch``: speculators' loader compares tensors."""
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": fingerprint,
        "_format_columns": TRAINER_COLUMNS,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
