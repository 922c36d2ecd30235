"""Real conversations and hand-written odd ones through the whole stage: nothing crashes, and the totals add up."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
from helpers.tiny_tokenizer import (
    APPENDING,
    CALLS_AS_OBJECTS,
    CONTROL,
    FORGETTING,
    MARKED,
    NO_HEADER,
    STRICT,
    save_model,
)
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.layout import Results

SHARED = Path(os.environ.get("HIDDEN_STATES_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")

SPECIFICATION = SimpleNamespace(fingerprint="0" * 32, layers=(2, 4, 5), final="pre_norm", dtype="BF16", hidden_size=8)
TEMPLATES = {
    "appending": APPENDING,
    "marked": MARKED,
    "forgetting": FORGETTING,
    "strict": STRICT,
    "no_header": NO_HEADER,
    "calls": CALLS_AS_OBJECTS,
}
EXPECTED = {
    "empty_conversations": "empty",
    "only_system": "no_assistant_turn",
    "no_assistant_turn": "no_assistant_turn",
    "empty_assistant_content": "empty",
    "null_assistant_content_no_tool_calls": "empty",
    "lone_surrogate_escapes": "invalid_text",
    "reasoning_content_field": "template_error",
    "very_long_single_user_message": "too_long",
    "conversations_and_messages_both_present": "unknown_shape",
}
"""Case of nasty.jsonl → why it is rejected, whatever the template; the others are accepted by ``calls``."""

Run = Callable[..., tuple[dict, list[dict]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The summary and the rejected rows of some files with a template."""

    def tokenize(files: list[str], template: str, special: tuple[str, ...] = CONTROL) -> tuple[dict, list[dict]]:
        model = save_model(tmp_path / "model", TEMPLATES[template], special=special)
        results = Results(tmp_path / "results")
        limits = {"max_tokens": 8192, "min_loss_tokens": 1, "max_rejected": 1.0, "duplicates": "keep"}
        settings = {
            "model": {"trust_remote_code": False},
            "conversations": {"files": [str(SHARED / file) for file in files], **limits},
            "extraction": {"chunks": 4, "concurrency": 4},
            "packaging": {"formats": ["speculators"], "link": "hard"},
        }
        summary = tokenize_corpus(settings, model, results, SPECIFICATION)
        return summary, pyarrow.parquet.read_table(results.rejected).to_pylist()

    return tokenize


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_row_of_every_file_is_accepted_or_rejected(run: Run, template: str) -> None:
    summary, rejected = run(["conversations/*", "nasty.jsonl", "malformed/*"], template)
    assert summary["rows_read"] == 3883
    assert summary["accepted"] + summary["rejected"] == summary["rows_read"]
    assert len(rejected) == sum(summary["reasons"].values()) == summary["rejected"]
    assert summary["accepted"] > 1500


def test_the_dummy_conversations_are_accepted_whole(run: Run) -> None:
    summary, _ = run(["conversations/sharegpt_dummy_conversation.json"], "appending")
    assert (summary["accepted"], summary["rejected"]) == (500, 0)


def test_each_odd_row_has_the_reason_it_should_have(run: Run) -> None:
    cases = [json.loads(line)["case"] for line in (SHARED / "nasty.jsonl").read_text(encoding="utf-8").splitlines()]
    _, rejected = run(["nasty.jsonl"], "calls")
    found = {cases[row["source_row"]]: row["reason"] for row in rejected}
    assert found == EXPECTED


def test_only_the_models_own_control_tokens_are_refused_in_a_text(run: Run) -> None:
    _, rejected = run(["nasty.jsonl"], "calls", special=(*CONTROL, "<|im_end|>"))
    assert [row["detail"] for row in rejected if row["reason"] == "control_token_in_text"] == [
        "turn 0 (user) holds '<|im_end|>'"
    ]


def test_strict_templates_name_the_turn_order(run: Run) -> None:
    _, rejected = run(["nasty.jsonl"], "strict")
    details = " ".join(row["detail"] for row in rejected if row["reason"] == "template_error")
    assert "roles must alternate" in details


def test_a_template_that_forgets_reasoning_gives_such_a_row_a_sample_for_each_answer(run: Run) -> None:
    summary, rejected = run(["nasty.jsonl"], "forgetting")
    assert not [row for row in rejected if row["reason"] == "mask_ambiguous"]
    assert summary["samples"] == summary["accepted"] + 1  # think_tags_inline


def test_malformed_files_lose_only_the_row_that_is_cut(run: Run) -> None:
    summary, rejected = run(["malformed/*"], "appending")
    assert (summary["rows_read"], summary["accepted"]) == (12, 11)
    assert [Path(row["source_file"]).name for row in rejected] == ["truncated_last_line.jsonl"]
    assert rejected[0]["reason"] == "invalid_json"
