"""Whether tokenizer and model belong together: ids, rows of the weights, and the special tokens that the model names.

Sizes alone prove little. Models pad their rows (Qwen3 has 151,936 rows for 151,669 ids), and a few tokenizers have an
id more than their model has rows (Gemma 3 of 1B). The ids of special tokens say more: another tokenizer has ordinary
words in their place.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hidden_states.checkpoint import Checkpoint
from hidden_states.errors import UserError
from hidden_states.vocabulary.embedding import embedding_rows
from hidden_states.vocabulary.json_file import read_json
from hidden_states.vocabulary.template_tokens import unknown_template_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

KINDS = ("bos", "eos", "pad")
SHARE_USUAL, SHARE_POSSIBLE = 0.9, 0.5
"""Of the model's ids that the tokenizer has, or of the tokenizer's that the model has: below the first it is unusual,
below the second no model was trained so."""
SHOWN = 5


@dataclass(frozen=True)
class _Ids:
    """``all``: the ids of the tokenizer; ``control``: those of added and special tokens; ``own``: by kind, None where
    the tokenizer has none."""

    all: frozenset[int]
    control: frozenset[int]
    own: dict[str, int | None]


def check_vocabulary(checkpoint: Checkpoint, tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    """Compare, log every difference in plain words, and return what was found, for ``summary.json``.

    Reads config files and the headers of the weights. Raises UserError when the tokenizer certainly belongs to
    another model, or config and weights to different ones.
    """
    rows = embedding_rows(checkpoint)
    ids = _ids_of(tokenizer)
    without_row = sorted(number for number in ids.all if number >= rows)
    named = _special_ids(checkpoint)
    head = _head_rows(checkpoint)
    found = {
        "tokenizer_ids": len(ids.all),
        "highest_id": max(ids.all, default=-1),
        "added_tokens": len(tokenizer.added_tokens_decoder),
        "config_ids": rows,
        "embedding_rows": checkpoint.embedding.shape[0],
        "lm_head_rows": head,
        "ids_without_row": len(without_row),
        "rows_without_id": rows - (len(ids.all) - len(without_row)),
        "special": {
            kind: {
                "model": {str(number): _word(tokenizer, number, ids) for number in sorted(named[kind])},
                "tokenizer": ids.own[kind],
            }
            for kind in KINDS
        },
    }
    _refuse_other_size(checkpoint, found)
    if not (_are_defaults(named) and _fits_in_size(found)):
        _refuse_other_special_tokens(checkpoint, tokenizer, ids, named)
    notes, warnings = _size_words(tokenizer, found, without_row)
    warnings += _special_words(tokenizer, ids, named, rows)
    if unknown := unknown_template_tokens(tokenizer):
        warnings.append(
            f"the chat template writes {', '.join(unknown)}, which the tokenizer would split into ordinary tokens; "
            "check that the template is the model's own"
        )
    for line in notes:
        log.info("vocabulary: %s", line)
    for line in warnings:
        log.warning("vocabulary: %s", line)
    return found | {"notes": notes, "warnings": warnings}


def _ids_of(tokenizer: "PreTrainedTokenizerBase") -> _Ids:
    added = tokenizer.added_tokens_decoder
    own = {kind: getattr(tokenizer, f"{kind}_token_id", None) for kind in KINDS}
    return _Ids(
        all=frozenset(tokenizer.get_vocab().values()) | frozenset(added),
        control=frozenset(added) | frozenset(tokenizer.all_special_ids),
        own={kind: number if isinstance(number, int) else None for kind, number in own.items()},
    )


def _special_ids(checkpoint: Checkpoint) -> dict[str, dict[int, str]]:
    """By kind, the ids that the model's files name, each with the file. Negative ids stand for none."""
    outer = read_json(checkpoint.folder / "config.json")
    generation = read_json(checkpoint.folder / "generation_config.json")
    sources = ((outer, "config.json"), (checkpoint.config.raw, "config.json"), (generation, "generation_config.json"))
    named: dict[str, dict[int, str]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for content, file in sources:
            value = content.get(f"{kind}_token_id")
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                    named[kind].setdefault(number, file)
    return named


def _head_rows(checkpoint: Checkpoint) -> int | None:
    """Rows of ``lm_head``; None where it has no matrix of its own name (packed by a quantiser, or left out)."""
    try:
        return checkpoint.lm_head.shape[0]
    except UserError:
        return None


def _refuse_other_size(checkpoint: Checkpoint, found: dict[str, Any]) -> None:
    common = found["tokenizer_ids"] - found["ids_without_row"]
    if common >= SHARE_POSSIBLE * max(found["config_ids"], found["tokenizer_ids"]):
        return
    raise UserError(
        f"{checkpoint.folder}: the tokenizer has {found['tokenizer_ids']:,} ids, but the model {found['config_ids']:,} "
        f"(vocab_size in config.json), and they share {common:,}. It is the tokenizer of another model; copy the "
        "tokenizer's files of this one into the folder."
    )


def _are_defaults(named: dict[str, dict[int, str]]) -> bool:
    """Whether the ids are those that transformers wrote into a config for a model that had named none."""
    return named["eos"].keys() == {2} and named["bos"].keys() <= {1}


def _fits_in_size(found: dict[str, Any]) -> bool:
    return not found["ids_without_row"] and found["tokenizer_ids"] >= SHARE_USUAL * found["config_ids"]


def _refuse_other_special_tokens(
    checkpoint: Checkpoint, tokenizer: "PreTrainedTokenizerBase", ids: _Ids, named: dict[str, dict[int, str]]
) -> None:
    """The tokens at which a model stops are control tokens of its tokenizer. Where the files name none, the first
    token of a text has to do; ids for padding are too often made up."""
    kind = "eos" if named["eos"] else "bos"
    own = ids.own[kind]
    if not named[kind] or own is None or ids.control & named[kind].keys():
        return
    listed = ", ".join(f"{number} ({_word(tokenizer, number, ids)})" for number in sorted(named[kind]))
    file = next(iter(named[kind].values()))
    raise UserError(
        f"{checkpoint.folder / file}: {kind}_token_id is {listed} in the tokenizer's words, whose own {kind} token is "
        f"{own} ({_word(tokenizer, own, ids)}). It is the tokenizer of another model; copy the tokenizer's files of "
        f"this one into the folder, or correct {kind}_token_id if that is what is wrong."
    )


def _size_words(
    tokenizer: "PreTrainedTokenizerBase", found: dict[str, Any], without_row: list[int]
) -> tuple[list[str], list[str]]:
    """What is as usual, and what is not."""
    rows, head = found["config_ids"], found["lm_head_rows"]
    notes = [
        f"the tokenizer has {found['tokenizer_ids']:,} ids ({found['added_tokens']:,} of them added tokens), the model "
        f"{rows:,}; the embedding has {found['embedding_rows']:,} rows, lm_head "
        + ("none that can be counted" if head is None else f"{head:,}")
    ]
    warnings = []
    if padding := found["embedding_rows"] - rows:
        notes.append(f"the last {padding:,} rows of the embedding are beyond vocab_size: padding, and never sent")
    if head is not None and head != found["embedding_rows"]:
        words = f"lm_head has {head:,} rows, the embedding {found['embedding_rows']:,}"
        if head < rows:
            warnings.append(f"{words}: the model cannot say every id that vocab_size = {rows:,} lets it read")
        else:
            notes.append(f"{words}: one of them is padded further")
    if spare := found["rows_without_id"]:
        words = f"{spare:,} of the model's ids stand for no token"
        if found["tokenizer_ids"] - found["ids_without_row"] >= SHARE_USUAL * rows:
            notes.append(f"{words}: rows are padded to a round number, or kept for tokens to come")
        else:
            warnings.append(f"{words}, more than padding explains; check that the tokenizer is the model's own")
    if without_row:
        shown = ", ".join(f"{number} ({tokenizer.convert_ids_to_tokens(number)!r})" for number in without_row[:SHOWN])
        more = f" and {len(without_row) - SHOWN:,} more" if len(without_row) > SHOWN else ""
        warnings.append(
            f"the model has no row for {len(without_row):,} of the tokenizer's ids: {shown}{more}; conversations that "
            "use one are rejected as id_out_of_vocabulary"
        )
    return notes, warnings


def _special_words(
    tokenizer: "PreTrainedTokenizerBase", ids: _Ids, named: dict[str, dict[int, str]], rows: int
) -> list[str]:
    warnings = []
    for kind in KINDS:
        for number, file in sorted(named[kind].items()):
            where = f"{kind}_token_id {number} of {file}"
            if number >= rows:
                warnings.append(f"{where} is beyond vocab_size = {rows:,}")
            elif number not in ids.control:
                warnings.append(f"{where} is no control token of the tokenizer ({_word(tokenizer, number, ids)})")
    own = ids.own["eos"]
    if named["eos"] and own is not None and own not in named["eos"]:
        stops = ", ".join(f"{number} ({_word(tokenizer, number, ids)})" for number in sorted(named["eos"]))
        warnings.append(
            f"the tokenizer's eos token {own} ({_word(tokenizer, own, ids)}) is none at which the model stops: {stops}"
        )
    return warnings


def _word(tokenizer: "PreTrainedTokenizerBase", number: int, ids: _Ids) -> str:
    return repr(tokenizer.convert_ids_to_tokens(number)) if number in ids.all else "no token"
