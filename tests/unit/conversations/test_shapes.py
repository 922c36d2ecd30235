"""Shapes of rows, and the reasons for which a row is left out; each reason of REASONS occurs in some test."""

import pytest
from helpers.tiny_tokenizer import APPENDING, CALLS_AS_OBJECTS
from hidden_states.conversations.messages import ROLES
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
        {"instruction": "a", "input": " ", "output": "b", "text": "### Instruction: a"},
        {"instruction": "", "input": "a", "output": "b", "history": []},
        {"prompt": "a", "completion": "b"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": [USER], "completion": "b"},
        {"messages": [USER, ANSWER], "prompt": "a", "completion": "c", "instruction": "d", "output": "e"},
        {"Messages": [{"Role": "user", "Content": "a"}, ANSWER]},
        {"CONVERSATIONS": [{"From": "human", "Value": "a"}, {"from": "gpt", "value": "b"}]},
        {"Instruction": "a", "Output": "b"},
        {"messages": [USER, ANSWER], "conversations": None, "input_ids": None, "images": None, "tools": None},
        {"conversations": [USER | {"from": None, "value": None}, ANSWER | {"tool_calls": None, "from": None}]},
    ],
)
def test_every_shape_becomes_the_same_conversation(row: dict) -> None:
    assert roles_and_contents(row) == [("user", "a"), ("assistant", "b")]


@pytest.mark.parametrize("name", [*ROLES, "Function-Call", " GPT ", "tool response"])
def test_every_role_name_is_read_in_both_spellings_of_turns(name: str) -> None:
    call = '{"name": "f", "arguments": {}}'
    turns = [USER, {"from": name, "value": call}, ANSWER]
    role = ROLES[name.strip().lower().replace("-", "_").replace(" ", "_")]
    assert roles_and_contents({"conversations": turns})[1][0] == role
    if "call" not in name.lower():
        assert roles_and_contents({"messages": [USER, {"role": name, "content": call}, ANSWER]})[1] == (role, call)


def test_instruction_and_input_are_one_question_after_the_system_prompt_and_the_history() -> None:
    row = {"system": "s", "history": [["q", "r"]], "instruction": "a", "input": "i", "output": "b"}
    assert roles_and_contents(row) == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "r"),
        ("user", "a\ni"),
        ("assistant", "b"),
    ]


def test_a_whole_number_is_the_text_of_its_digits() -> None:
    wanted = [("user", "42"), ("assistant", "7")]
    assert (
        roles_and_contents({"conversations": [{"from": "human", "value": 42}, {"from": "gpt", "value": 7}]}) == wanted
    )
    assert roles_and_contents({"instruction": 42, "output": 7}) == wanted
    assert roles_and_contents({"prompt": 42, "completion": 7}) == wanted


def test_the_older_function_call_of_openai_becomes_a_tool_call() -> None:
    answer = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
    shape = read_shape({"messages": [USER, answer, {"role": "function", "name": "f", "content": "2"}, ANSWER]})
    assert shape.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert shape.messages[2] == {"role": "tool", "content": "2", "name": "f"}


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
        ({"instruction": "a", "response": "b"}, "unknown_shape"),
        ({"instruction": "a", "output": "b", "prompt": "a", "completion": "b"}, "unknown_shape"),
        ({"instruction": "a", "output": ["b"]}, "unknown_shape"),
        ({"instruction": "a", "output": "b", "history": [["q"]]}, "unknown_shape"),
        ({"instruction": "a", "output": "b", "history": "q"}, "unknown_shape"),
        ({"prompt": {"role": "user"}, "completion": "b"}, "unknown_shape"),
        ({"prompt": "a", "completion": 0.1}, "unknown_shape"),
        ({"messages": "a"}, "unknown_shape"),
        ({"messages": ["a"]}, "unknown_shape"),
        ({"messages": [{"to": "human"}]}, "unknown_shape"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "unknown_shape"),
        ({"messages": [{"role": "user", "content": 4.2}]}, "unknown_shape"),
        ({"messages": [{"role": "user", "content": True}]}, "unknown_shape"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "unknown_shape"),
        ({"messages": [USER, ANSWER], "conversations": [USER]}, "unknown_shape"),
        ({"Messages": [USER, ANSWER], "MESSAGES": [USER]}, "unknown_shape"),
        ({"messages": [USER | {"Content": "b"}, ANSWER]}, "unknown_shape"),
        ({"messages": []}, "empty"),
        ({"instruction": "", "input": " ", "output": "b"}, "empty"),
        ({"instruction": "a", "output": ""}, "empty"),
        ({"prompt": "", "completion": "b"}, "empty"),
        ({"prompt": "a", "completion": []}, "empty"),
        ({"prompt": [USER], "completion": [USER]}, "no_assistant_turn"),
        ({"instruction": "a", "output": "b", "Image": "x.png"}, "multimodal"),
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


def test_the_detail_names_the_key_that_is_missing() -> None:
    with pytest.raises(Rejected, match="has instruction, but no output; its keys: instruction, response"):
        read_shape({"instruction": "a", "response": "b"})


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


@pytest.mark.parametrize("depth", [100, 5_000, 100_000])
def test_depth_crashes_nothing(outcome, depth: int) -> None:
    deep: dict = {}
    for _ in range(depth):
        deep = {"a": deep}
    call = {"function": {"name": "f", "arguments": deep}}
    for row in (
        {"messages": [USER, ANSWER | {"tool_calls": [call]}]},
        {"messages": [USER, ANSWER], "tools": [deep]},
        deep,
    ):
        result = outcome(CALLS_AS_OBJECTS, row)
        assert not isinstance(result, Rejected) or result.reason in (
            "invalid_json",
            "invalid_tool_call",
            "unknown_shape",
        )
