"""One row of the input, made anew into its samples, for a person to look at."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hidden_states.checkpoint import Checkpoint
from hidden_states.conversations.batches import BatchTokenizer, Sample
from hidden_states.conversations.reasons import REASONS, Rejected
from hidden_states.conversations.rows import Input, Row
from hidden_states.conversations.segments import Decode, mask_segments
from hidden_states.conversations.sources import find_sources
from hidden_states.errors import UserError
from hidden_states.vocabulary.end_of_turn import eos_ids
from hidden_states.vocabulary.fit import check_vocabulary
from hidden_states.vocabulary.tokenizer import load_tokenizer

LOSS, OTHER, TITLE, END = "\x1b[1;32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
BRACKETS = "⟦", "⟧"
"""Around what has loss where there is no colour."""


def shown_row(settings: dict[str, Any], model_folder: Path, number: int, file: str | None, colour: bool) -> str:
    """Row ``number`` of ``file`` (by its name, or the end of it; the first input where None): its samples with what
    has loss in colour, or in brackets, or why it is rejected. Raises UserError where there is no such row."""
    row = find_row(settings["conversations"]["files"], number, file)
    tokenizer = load_tokenizer(model_folder, settings["model"]["trust_remote_code"])
    num_ids = check_vocabulary(Checkpoint(model_folder), tokenizer)["config_ids"]
    tokenize = BatchTokenizer(tokenizer, settings["conversations"], num_ids, eos_ids(model_folder, tokenizer))
    ((_, result),) = next(tokenize.results([[row]]))

    def decode(ids: Any) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return "\n".join([_title(f"{row.source_file} row {row.source_row}", colour), *_lines(result, decode, colour)])


def find_row(entries: list[str], number: int, file: str | None) -> Row:
    """The row; raises UserError."""
    sources = find_sources(entries)
    if file is None:
        chosen = sources[:1]
    else:
        chosen = [source for source in sources if source.name == file] or [
            source for source in sources if f"{os.sep}{source.name}".endswith(f"{os.sep}{file}")
        ]
    names = ", ".join(source.name for source in sources[:10]) + (", …" if len(sources) > 10 else "")
    if len(chosen) != 1:
        kind = "names no" if not chosen else f"fits {len(chosen)}"
        raise UserError(f"--file {file} {kind} input of config key conversations.files, which has {names}.")
    count = 0
    for row in Input(chosen[0]).rows():
        if row.source_row == number:
            return row
        count += 1
    raise UserError(f"{chosen[0].name} has {count:,} rows, numbered from 0; there is no row {number}.")


def _lines(result: list[Sample] | Rejected, decode: Decode, colour: bool) -> Iterator[str]:
    if isinstance(result, Rejected):
        yield f"rejected: {result.reason}: {_printable(result.detail)}"
        yield REASONS[result.reason]
        return
    for number, sample in enumerate(result, 1):
        turn = f", up to turn {sample.turn}" if sample.turn >= 0 else ""
        counts = f"{sample.input_ids.size:,} tokens, {int(sample.loss_mask.sum()):,} with loss"
        yield _title(f"sample {number} of {len(result)}{turn}: {counts}", colour)
        yield "".join(_painted(text, has_loss, colour) for text, has_loss in mask_segments(sample, decode))


def _title(text: str, colour: bool) -> str:
    return f"{TITLE}{_printable(text)}{END}" if colour else _printable(text)


def _painted(text: str, has_loss: bool, colour: bool) -> str:
    text = _printable(text)
    if not colour:
        return text.join(BRACKETS) if has_loss else text
    paint = LOSS if has_loss else OTHER
    return f"{paint}{text}{END}"


def _printable(text: str) -> str:
    """Without the control characters that a terminal would obey."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1] for character in text
    )
