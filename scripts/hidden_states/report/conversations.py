"""A few samples as text, cut where the loss mask changes, for a person to see what the drafter learns from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet

from hidden_states.errors import UserError
from hidden_states.layout import Results

SHOWN, TOKENS = 6, 600
"""Samples, and tokens of each at most: half of them from its beginning, half from its end."""
COLUMNS = ["sample_id", "source_file", "source_row", "n_tokens", "n_loss_tokens", "input_ids", "loss_mask"]

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Segment:
    """Text of neighbouring tokens; ``left_out`` stands for so many tokens, without their text."""

    text: str
    has_loss: bool
    left_out: int = 0


@dataclass(frozen=True)
class ShownSample:
    sample_id: int
    source: str
    num_tokens: int
    num_loss_tokens: int
    segments: list[Segment]


def shown_samples(results: Results, chunks: list[str], decode: Decode) -> list[ShownSample]:
    """Samples from all over the corpus. A chunk's file is read only as far as the sample that is taken from it."""
    filled = [chunk for chunk in chunks if _num_rows(results.tokens(chunk))]
    shown = []
    for index in range(SHOWN):
        # Where there are fewer chunks than samples to show, several come from one chunk.
        chunk, part = divmod(index * len(filled), SHOWN)
        rows = _num_rows(results.tokens(filled[chunk])) if filled else 0
        row = _row(results.tokens(filled[chunk]), part * rows // SHOWN) if rows else None
        if row is not None and all(row["sample_id"] != other.sample_id for other in shown):
            shown.append(
                ShownSample(
                    sample_id=row["sample_id"],
                    source=f"{row['source_file']} row {row['source_row']}",
                    num_tokens=row["n_tokens"],
                    num_loss_tokens=row["n_loss_tokens"],
                    segments=segments(row["input_ids"], row["loss_mask"], decode),
                )
            )
    return shown


def segments(ids: list[int], mask: list[int], decode: Decode) -> list[Segment]:
    """Runs of equal mask in order; a long sample without its middle."""
    if len(ids) <= TOKENS:
        return _runs(ids, mask, decode)
    head, tail = TOKENS // 2, len(ids) - TOKENS // 2
    return [
        *_runs(ids[:head], mask[:head], decode),
        Segment("", False, tail - head),
        *_runs(ids[tail:], mask[tail:], decode),
    ]


def _runs(ids: list[int], mask: list[int], decode: Decode) -> list[Segment]:
    """Each run's text is what it adds to the text before it: on their own, some tokens lose the space they begin
    with."""
    edges = [0, *(np.flatnonzero(np.diff(np.array(mask))) + 1).tolist(), len(ids)]
    found, before = [], ""
    for begin, end in pairwise(edges):
        text = decode(ids[:end])
        own = text[len(before) :] if text.startswith(before) else decode(ids[begin:end])
        found.append(Segment(own, bool(mask[begin])))
        before = text
    return found


def model_decoder(model: Path, trust_remote_code: bool) -> Decode:
    """Ids → text, control tokens included. Raises UserError when the tokenizer cannot be loaded."""
    if (model / "tokenizer.json").is_file():
        from tokenizers import Tokenizer  # transformers would bring torch along

        try:
            fast = Tokenizer.from_file(str(model / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more special
            raise UserError(f"{model / 'tokenizer.json'} cannot be read ({error})") from error
        return lambda ids: fast.decode(list(ids), skip_special_tokens=False)
    from hidden_states.vocabulary.tokenizer import load_tokenizer

    slow = load_tokenizer(model, trust_remote_code)
    return lambda ids: slow.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _num_rows(path: Path) -> int:
    try:
        return pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"token file {path} cannot be read ({error}); run: snakemake --cores 8 all") from error


def _row(path: Path, number: int) -> dict | None:
    """Row ``number`` of a token file; only the row group that holds it is read."""
    with pyarrow.parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if number < rows:
                begin = 0
                for batch in file.iter_batches(256, row_groups=[group], columns=COLUMNS):
                    if number < begin + batch.num_rows:
                        return batch.slice(number - begin, 1).to_pylist()[0]
                    begin += batch.num_rows
            number -= rows
    return None
