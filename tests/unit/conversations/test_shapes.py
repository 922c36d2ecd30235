"""Shapes of rows, and the reasons for which a row is left out; each reason of REASONS occurs in some test."""

import pytest
from helpers.tiny_tokenizer import APPENDING
from hidden_states.conversations.reasons import REASONS, Rejected
from hidden_states.conversations.shapes import Conversation, TokenIds, read_shape
from hidden_states.errors import UserError

USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


def reason_of(row: object) -> str:
    with pytest.raises(Rejected) as rejected:
        read_shape(row)
    assert rejected.value.detail
    return rejected.value.reason


def roles_and_contents(row: dict) -> list[tuple[str, str | None]]:
    shape = read_shape(row)
    assert isinstance(shape, Conversation)
    return [(message["role"], message["content"]) for message in shape.messages]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"messages": [{"from": "Human", "value": "a"}, {"from": "chatgpt", "value": "b"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
                ANSWER,
            ]
        },
    ],
)
def test_every_shape_becomes_the_same_conversation(row: dict) -> None:
    assert roles_and_contents(row) == [("user", "a"), ("assistant", "b")]


def test_a_sharegpt_call_and_its_result_become_tool_calls_and_a_tool_turn() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "b"},
        ],
        "tools": '[{"name": "f", "parameters": {}}]',
    }
    shape = read_shape(row)
    assert [message["role"] for message in shape.messages] == ["user", "assistant", "tool", "assistant"]
    assert shape.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert shape.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_the_system_prompt_of_a_sharegpt_row_comes_first() -> None:
    assert roles_and_contents({"system": "s", "messages": [USER, ANSWER]})[0] == ("system", "s")


def test_reasoning_beside_the_content_is_kept_under_one_name() -> None:
    shape = read_shape({"messages": [USER, {"role": "assistant", "content": "", "thinking": "hm"}]})
    assert shape.messages[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (7, "unknown_shape"),
        ({"Conversations": []}, "unknown_shape"),
        ({"instruction": "a"}, "unknown_shape"),
        ({"messages": "a"}, "unknown_shape"),
        ({"messages": ["a"]}, "unknown_shape"),
        ({"messages": [{"From": "human"}]}, "unknown_shape"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "unknown_shape"),
        ({"messages": [{"role": "user", "content": 42}]}, "unknown_shape"),
        ({"messages": [USER, ANSWER], "conversations": [USER]}, "unknown_shape"),
        ({"messages": []}, "empty"),
        ({"messages": [USER, {"role": "assistant", "content": " \n"}]}, "empty"),
        ({"messages": [{"role": "user", "content": None}, ANSWER]}, "empty"),
        ({"messages": [USER]}, "no_assistant_turn"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "multimodal"),
        ({"messages": [USER, ANSWER], "images": ["x.png"]}, "multimodal"),
        ({"messages": [USER, ANSWER], "tools": "{"}, "invalid_tool_call"),
        ({"messages": [USER, ANSWER | {"tool_calls": [{"function": {}}]}]}, "invalid_tool_call"),
        ({"messages": [USER, ANSWER | {"tool_calls": [{"name": "f", "arguments": "{"}]}]}, "invalid_tool_call"),
        ({"conversations": [{"from": "function_call", "value": "call f"}]}, "invalid_tool_call"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [1, "2"]}, "unknown_shape"),
        ({"input_ids": [1, True]}, "unknown_shape"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "invalid_mask"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "invalid_mask"),
        ({"input_ids": [1, 2], "loss_mask": "11"}, "invalid_mask"),
    ],
)
def test_a_row_of_no_known_shape_says_what_is_wrong_with_it(row: object, reason: str) -> None:
    assert reason_of(row) == reason


def test_the_right_spelling_is_in_the_detail_for_keys_in_the_wrong_case() -> None:
    with pytest.raises(Rejected, match="must be conversations"):
        read_shape({"Conversations": []})


def test_ids_without_a_mask_have_loss_everywhere_and_say_so() -> None:
    assert read_shape({"input_ids": [3, 4]}) == TokenIds([3, 4], [1, 1], has_mask=False)
    assert read_shape({"input_ids": [3, 4], "loss_mask": [0, 1]}) == TokenIds([3, 4], [0, 1], has_mask=True)


@pytest.mark.parametrize(
    ("row", "limits", "reason"),
    [
        ({"input_ids": [1, 10]}, {"num_ids": 10}, "id_out_of_vocabulary"),
        ({"input_ids": [-1, 1]}, {}, "id_out_of_vocabulary"),
        ({"input_ids": [2**70, 1]}, {}, "id_out_of_vocabulary"),
        ({"messages": [USER, ANSWER]}, {"num_ids": 50}, "id_out_of_vocabulary"),
        ({"input_ids": [1] * 9}, {"max_tokens": 8}, "too_long"),
        ({"messages": [USER, ANSWER]}, {"max_tokens": 8}, "too_long"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, {}, "no_loss_tokens"),
        ({"messages": [USER, ANSWER]}, {"min_loss_tokens": 3}, "no_loss_tokens"),
        ({"messages": [USER, {"role": "assistant", "content": "half \ud83d"}]}, {}, "invalid_text"),
        (Rejected("invalid_json", "line 3"), {}, "invalid_json"),
    ],
)
def test_limits_are_checked_for_each_row(outcome, row: object, limits: dict, reason: str) -> None:
    assert outcome(APPENDING, row, **limits).reason == reason


def test_nul_and_unusual_characters_are_text_like_any_other(masked) -> None:
    words = "NUL \x00 bell \x07 مرحبا 👩‍👩‍👧"
    assert masked(APPENDING, {"messages": [USER, {"role": "assistant", "content": words}]}) == [words + "<|end|>"]


def test_a_model_without_chat_template_is_refused_unless_rows_are_ids(outcome) -> None:
    assert outcome(None, {"input_ids": [1, 2]}).loss_mask.tolist() == [1, 1]
    with pytest.raises(UserError, match="no chat template"):
        outcome(None, {"messages": [USER, ANSWER]})


def test_an_undocumented_reason_is_a_bug() -> None:
    with pytest.raises(ValueError, match="bug"):
        Rejected("because", "")
    assert all(meaning.endswith(".") for meaning in REASONS.values())
