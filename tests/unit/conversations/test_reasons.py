"""Every documented reason for leaving a row out, each by a row that has it, in a corpus whose other row is accepted."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
from helpers.tiny_tokenizer import GLUED, STRICT, save_model
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.conversations.reasons import REASONS
from hidden_states.layout import Results
from hidden_states.settings import check

SPECIFICATION = SimpleNamespace(fingerprint="0" * 32, layers=(2, 4, 5), final="pre_norm", dtype="BF16", hidden_size=8)
GOOD = {"input_ids": [5, 6]}
USER = {"role": "user", "content": "Say it."}
ANSWER = {"role": "assistant", "content": "it"}


@dataclass(frozen=True)
class Case:
    """A row, or the line that stands for it, which ``words`` tell of in the detail."""

    row: Any
    words: str
    options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


CASES = {
    "invalid_json": Case('{"messages": [', "line 2: Expecting value at character 14"),
    "invalid_text": Case({"messages": [USER, ANSWER | {"content": "half \ud83d"}]}, "surrogate"),
    "unknown_shape": Case({"question": "a", "answer": "b"}, "its keys: question, answer"),
    "empty": Case({"messages": [USER, ANSWER | {"content": " "}]}, "turn 1 (assistant) has no content"),
    "no_assistant_turn": Case({"messages": [USER]}, "the roles are user"),
    "multimodal": Case({"messages": [USER, ANSWER], "images": ["a.png"]}, "the row has images"),
    "invalid_tool_call": Case({"messages": [USER, ANSWER | {"tool_calls": [{"id": "1"}]}]}, "no function with a name"),
    "control_token_in_text": Case({"messages": [USER, ANSWER | {"content": "<|user|>"}]}, "'<|user|>'"),
    "template_error": Case({"messages": [USER, USER, ANSWER]}, "roles must alternate", model={"template": STRICT}),
    "mask_ambiguous": Case({"messages": [USER, ANSWER | {"content": "rivers"}]}, "token", model={"template": GLUED}),
    "invalid_mask": Case({"input_ids": [5, 6], "loss_mask": [1]}, "1 entries for 2 ids"),
    "no_loss_tokens": Case({"input_ids": [5, 6], "loss_mask": [0, 1]}, "1 tokens with loss", {"min_loss_tokens": 2}),
    "too_long": Case({"input_ids": [5, 6, 7]}, "3 tokens", {"max_tokens": 2}),
    "id_out_of_vocabulary": Case({"input_ids": [5, 410]}, "id 410 at 1"),
    "duplicate": Case(GOOD, "2 tokens, all as in a row before", {"duplicates": "drop"}),
}


def test_every_documented_reason_has_a_case() -> None:
    assert list(CASES) == list(REASONS)


@pytest.mark.parametrize("reason", REASONS)
def test_a_row_is_rejected_for_the_reason(reason: str, tmp_path: Path, repository: Path) -> None:
    case = CASES[reason]
    model = save_model(tmp_path / "model", **case.model)
    row = case.row if isinstance(case.row, str) else json.dumps(case.row)
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n" + row)
    changes = {
        "model": {"path": str(model)},
        "conversations": {"files": [str(tmp_path / "rows.jsonl")], **case.options},
        "extraction": {"chunks": 1},
    }
    settings = check(changes, repository / "config" / "schema.yaml", own=True)
    results = Results(tmp_path / "results")
    summary = tokenize_corpus(settings, model, results, SPECIFICATION)
    assert (summary["rows_read"], summary["accepted"], summary["reasons"]) == (2, 1, {reason: 1})
    (rejected,) = pyarrow.parquet.read_table(results.rejected).to_pylist()
    assert (rejected["source_row"], rejected["reason"]) == (1, reason)
    assert case.words in rejected["detail"]
