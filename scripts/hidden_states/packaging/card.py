"""The dataset card: ``README.md`` of a packaged dataset, written from its provenance."""

from typing import Any

from hidden_states.packaging.draft_vocabulary import words

TEMPLATE = """\
---
pretty_name: Hidden states of {model_name}
tags: [hidden-states, eagle3, speculative-decoding, speculators]
---

# Hidden states of {model_name}

The hidden states of {model_name} for every token of {rows:,} conversations, taken inside an SGLang server during
prefill, to train an EAGLE-3 drafter with [speculators](https://github.com/vllm-project/speculators) {trainer}.

| | |
|---|---|
| rows | {rows:,} |
| tokens | {tokens:,}, of which {loss_tokens:,} count in the loss |
| longest row | {longest:,} tokens |
| states | {num_bytes:,} bytes, {dtype}, {shape} per row |
| model | {architecture}, {num_layers} layers, revision {revision} |
| SGLang | {sglang_version} |
| fingerprint | `{fingerprint}` |

## Slots

{slots}

L = the residual stream after L decoder layers: Hugging Face's `hidden_states[L]` for L < {num_layers}. {notes}

## Files

| file | content |
|---|---|
{files}
| `provenance.json` | model, layers, settings, versions, inputs, self-check and counts |
| `checksums.json` | size and XXH3-128 of every file that is not a state file |

## Train

```
{train}
```

{draft_vocabulary}

## Serve

The drafter must be served with the layers it was trained on. Ids for its config:

{drafter}

## What was left out

{left_out}

## Licence

The rows derive from the conversations and the states from the model; the licences of both apply.
"""


FILES = """\
| `data-*.arrow`, `dataset_info.json`, `state.json` | the table: `input_ids`, `loss_mask`, `seq_len` for the trainer, \
and where each row came from: `sample_id`, `key`, `source_file`, `source_row` |
| `hidden_states/hs_{row}.safetensors` | `hidden_states` and `token_ids` of that row, with a checksum in the header |
| `token_freq.pt` | how often each token id occurs where the loss counts |"""

FILES_V1 = """\
| `data_{row}.pt` | a dict of `input_ids` [tokens] int64, `hidden_states`, a list of one [tokens, hidden size] \
tensor for each slot, and `loss_mask` [tokens] int64; with a checksum that `torch.load` passes over |
| `sample_lengths.json` | number of tokens of each row |
| `data_config.json` | model, layer ids and shapes, as speculators 0.4 notes them |
| `token_freq.bin` | how often each token id occurs where the loss counts; what speculators calls `token_freq.pt` |"""

DRAFT_VOCABULARY = """\
For a draft vocabulary smaller than the model's add `--draft-vocab-size 32000`; the trainer chooses its tokens from
`token_freq.pt`."""

CHOSEN_VOCABULARY = """\
The line above trains a drafter with a vocabulary of its own: {words} (`draft_vocabulary.json` has the figures of other
sizes). Leave out {options} for the model's whole vocabulary."""
CHOSEN_FILES = """\

| `t2d-{size}.npy`, `d2t-{size}.npy`, `draft_vocabulary.json` | the drafter's vocabulary: which of the model's ids it \
has, what to add to its own id to get the model's, and how much of the loss it covers |"""

DRAFT_VOCABULARY_V1 = """\
`speculators` is a checkout of its repository at v0.4.0. For a draft vocabulary smaller than the model's, run
`scripts/build_vocab_mapping.py` with `--token-freq-path token_freq.bin`, and add `--d2t-path` and `--t2d-path`. Its
trainers take every file below this folder whose name ends in `pt` for a row: keep all else elsewhere."""

UNPROVEN = """

**Nothing proves that these states are what they are said to be**: for this model neither logit replay nor a reference
forward was possible, and `self_check.reference: never` let the run go on."""
ROWS = "[tokens, {num_slots} slots, {hidden_size}]"
ROWS_V1 = "{num_slots} × [tokens, {hidden_size}]"


def dataset_card(content: dict[str, Any]) -> str:
    """Markdown for the dataset with this provenance."""
    counts, model, layers = content["counts"], content["model"], content["layers"]
    is_v1 = "layer_ids" in layers
    chosen, draft_vocabulary = content["draft_vocabulary"], DRAFT_VOCABULARY_V1 if is_v1 else DRAFT_VOCABULARY
    files = FILES_V1 if is_v1 else FILES
    if chosen:
        options = "`--t2d-path` and `--d2t-path`" if is_v1 else "`--draft-vocab-size`"
        draft_vocabulary = CHOSEN_VOCABULARY.format(words=words(chosen), options=options)
        files += CHOSEN_FILES.format(size=chosen["size"])
    return TEMPLATE.format(
        trainer="0.3 or 0.4" if is_v1 else "0.5 or later",
        files=files,
        draft_vocabulary=draft_vocabulary,
        shape=(ROWS_V1 if is_v1 else ROWS).format(num_slots=len(layers["slots"]), hidden_size=model["hidden_size"]),
        model_name=model["name"],
        rows=counts["rows"],
        tokens=counts["tokens"],
        loss_tokens=counts["loss_tokens"],
        longest=counts["longest_sample"],
        num_bytes=counts["bytes"],
        dtype=layers["dtype"],
        architecture=", ".join(model["architectures"]),
        num_layers=model["num_layers"],
        revision=model["revision"] or "as found in its folder",
        sglang_version=content["server"].get("sglang_version"),
        fingerprint=content["fingerprint"],
        slots=_table(["slot", "holds"], [[str(slot), words] for slot, words in enumerate(layers["slots"])]),
        notes=(_slot_notes_v1(layers) if is_v1 else _final_words(layers["final"])) + _unproven(content["server"]),
        train=content["train"],
        drafter=_table(
            ["engine", "key", "ids", "why"],
            [
                [name, f"`{entry['key']}`", "–" if entry["ids"] is None else str(entry["ids"]), entry["words"]]
                for name, entry in content["drafter"].items()
            ],
        ),
        left_out=_left_out(counts),
    )


def _unproven(server: dict[str, Any]) -> str:
    return "" if server.get("self_check", {}).get("proven", True) else UNPROVEN


def _final_words(final: str) -> str:
    if final == "pre_norm":
        return "The last slot is the state before the final norm, to which the trainer applies norm and lm_head itself."
    return (
        "**The last slot is the state after the final norm.** speculators from 0.5 on applies the norm itself, so here "
        "it would be applied twice: use this dataset with a trainer that expects normed states."
    )


def _slot_notes_v1(layers: dict[str, Any]) -> str:
    ids, count = layers["layer_ids"], len(layers["L"])
    words = f"`data_config.json` numbers layers from 0 by their outputs: `layer_ids` {ids}, one less than L."
    if count != 3:
        words += f" **The trainers of 0.3 and 0.4 take three layers besides the final state; here are {count}.**"
    return words + "\n\n" + "\n".join(f"- {text}" for text in layers["trainers"].values())


def _left_out(counts: dict[str, Any]) -> str:
    rows = [
        [what, reason, f"{count:,}"]
        for what, reasons in (
            ("input row rejected", counts["rejected_reasons"]),
            ("sample failed", counts["failed_reasons"]),
        )
        for reason, count in sorted(reasons.items())
    ]
    if not rows:
        return f"Nothing: all {counts['rows_read']:,} input rows are here."
    return _table(["what", "reason", "count"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
