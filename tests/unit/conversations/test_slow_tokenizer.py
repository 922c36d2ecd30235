"""A slow tokenizer without character offsets, as its model's own Python code: masks are as exact as with a fast one."""

from pathlib import Path

import pytest
from helpers.mask_templates import FAMILIES
from helpers.second_mask import save_family
from helpers.slow_tokenizer import save_slow_family
from hidden_states.conversations.batches import BatchTokenizer
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rows import Row
from hidden_states.errors import UserError
from hidden_states.vocabulary.tokenizer import load_tokenizer

TURNS = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": "Hauptstadt? 東京 😀 \n\n"},
    {"role": "assistant", "content": "Paris.\n\n"},
    {"role": "user", "content": " <b>12345</b>\t"},
    {"role": "assistant", "content": "Ça va, 👩‍👩‍👧!\r\n"},
]
LIMITS = {"max_tokens": 1000, "min_loss_tokens": 1}


@pytest.mark.parametrize("name", ["chatml", "chatml_marked", "kimi_k2", "kimi_k25", "qwen3", "glm", "gpt_oss", "phi"])
def test_ids_and_masks_are_those_of_the_fast_tokenizer_and_of_one_rendering(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    fast = load_tokenizer(save_family(tmp_path / "fast", family), trust_remote_code=False)
    slow = load_tokenizer(save_slow_family(tmp_path / "slow", family), trust_remote_code=True)
    assert fast.is_fast and not slow.is_fast
    outcomes = []
    for tokenizer in (fast, slow):
        ends = tokenizer.convert_tokens_to_ids(list(family.ends))
        tokenize = BatchTokenizer(tokenizer, LIMITS, len(fast), ends)
        rows = [Row("file", 0, {"messages": TURNS[begin:]}, 1) for begin in (0, 1)]
        outcomes.append([result for _, result in next(tokenize.results([rows]))])
    for mine, other in zip(*outcomes, strict=True):
        assert not isinstance(mine, Rejected), mine
        assert [sample.input_ids.tolist() for sample in mine] == [sample.input_ids.tolist() for sample in other]
        assert [sample.loss_mask.tolist() for sample in mine] == [sample.loss_mask.tolist() for sample in other]
        assert all(sample.loss_mask.any() for sample in other)
    last = outcomes[1][0][-1]
    whole = slow.apply_chat_template(TURNS, tokenize=False)
    assert last.input_ids.tolist() == slow(whole, add_special_tokens=False)["input_ids"]


def test_its_code_runs_only_where_the_config_says_so(tmp_path: Path) -> None:
    save_slow_family(tmp_path, FAMILIES["kimi_k2"])
    with pytest.raises(UserError, match="trust_remote_code: true"):
        load_tokenizer(tmp_path, trust_remote_code=False)
