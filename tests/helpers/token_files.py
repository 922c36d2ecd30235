"""Token files as tokenize writes them."""

import json

import pyarrow
import pyarrow.parquet
from helpers.states import header_for
from hidden_states.files import write_json
from hidden_states.layout import Results
from hidden_states.store.checksums import file_checksum
from hidden_states.store.tokens import keep_copy


def write_token_file(results: Results, chunk: str, prompts: list[list[int]], first_sample_id: int = 0) -> None:
    """Write ``tokens/{chunk}.parquet`` and its copy for ``prompts`` and record it in the summary."""
    path = results.tokens(chunk)
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first_sample_id, first_sample_id + len(prompts))
    table = pyarrow.table(
        {
            "sample_id": pyarrow.array(numbers, pyarrow.int64()),
            "key": pyarrow.array([header_for(ids).key for ids in prompts], pyarrow.string()),
            "source_file": pyarrow.array(["conversations.jsonl"] * len(prompts), pyarrow.string()),
            "source_row": pyarrow.array(numbers, pyarrow.int64()),
            "input_ids": pyarrow.array(prompts, pyarrow.list_(pyarrow.int32())),
            "loss_mask": pyarrow.array([[1] * len(ids) for ids in prompts], pyarrow.list_(pyarrow.int8())),
            "n_tokens": pyarrow.array([len(ids) for ids in prompts], pyarrow.int32()),
            "n_loss_tokens": pyarrow.array([len(ids) for ids in prompts], pyarrow.int32()),
        }
    )
    pyarrow.parquet.write_table(table, path)
    summary = json.loads(results.summary.read_text()) if results.summary.exists() else {"files": {}}
    summary["files"][path.name] = {"checksum": file_checksum(path)}
    keep_copy(results, chunk)
    write_json(results.summary, summary)
