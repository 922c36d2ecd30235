"""The manifest: one row per sample of a chunk, written once the chunk is finished.

| column | type | meaning |
|---|---|---|
| sample_id | int64 | running number of the accepted sample |
| key | str | hash of the token ids; names the state file |
| fingerprint | str | what made the state; names the folder of the store |
| status | str | ``ok`` or ``failed`` |
| reason | str, null | why it failed: a code, and where there is more to say a colon and the words |
| file | str, null | state file, relative to the results folder |
| n_tokens, slots, hidden_size | int32 | shape of the state |
| dtype | str | ``BF16`` |
| checksum | str, null | XXH3-128 of the state file's bytes after its header |
| bytes | int64 | size of the state file, 0 for a failed sample |
| seconds | float64, null | time of the request that made it |
| published | str, null | ``inode:mtime_ns`` of the state file |

Equal rows give equal bytes.
"""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from hidden_states.errors import UserError
from hidden_states.files import atomic_path

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("sample_id", pyarrow.int64(), nullable=False),
        pyarrow.field("key", pyarrow.string(), nullable=False),
        pyarrow.field("fingerprint", pyarrow.string(), nullable=False),
        pyarrow.field("status", pyarrow.string(), nullable=False),
        pyarrow.field("reason", pyarrow.string()),
        pyarrow.field("file", pyarrow.string()),
        pyarrow.field("n_tokens", pyarrow.int32(), nullable=False),
        pyarrow.field("slots", pyarrow.int32(), nullable=False),
        pyarrow.field("hidden_size", pyarrow.int32(), nullable=False),
        pyarrow.field("dtype", pyarrow.string(), nullable=False),
        pyarrow.field("checksum", pyarrow.string()),
        pyarrow.field("bytes", pyarrow.int64(), nullable=False),
        pyarrow.field("seconds", pyarrow.float64()),
        pyarrow.field("published", pyarrow.string()),
    ]
)


def reason_code(reason: str | None) -> str:
    """The code that a reason begins with; what follows it is of one sample, and not for counting by."""
    return reason.split(":")[0] if reason else "unknown"


def write_manifest(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write ``rows``, dicts with every column, under a temporary name and rename it to ``path``."""
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd")


def read_manifest(path: Path, columns: list[str] | None = None) -> pyarrow.Table:
    """Read a manifest, or some of its columns. Raises UserError when it is missing, damaged or has other columns."""
    again = "delete it and run `snakemake --cores 8 all` again: what is in the store is used, not computed again"
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise UserError(f"manifest {path} has other columns than this version writes; {again}.")
            return file.read(columns=columns)
    except FileNotFoundError:
        raise UserError(f"manifest {path} does not exist; run `snakemake --cores 8 all`.") from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"manifest {path} is damaged ({error}); {again}.") from None
