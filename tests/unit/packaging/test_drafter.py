"""Layer ids for each engine."""

from hidden_states.packaging.drafter import drafter_ids, slot_words

SERVER = {"sglang_version": "0.5.23", "model_class": "LlamaForCausalLM", "setter_argument": [1, 15, 28]}


def test_sglang_is_told_what_its_setter_was_told_and_the_others_the_layers_themselves():
    entries = drafter_ids((2, 16, 29), 32, SERVER)
    assert {name: entry["ids"] for name, entry in entries.items()} == {
        "speculators": [2, 16, 29],
        "vllm": [2, 16, 29],
        "sglang": [1, 15, 28],
    }
    assert "L = [2, 16, 29]" in entries["sglang"]["words"]


def test_no_id_is_made_up_where_none_is_known():
    assert drafter_ids((2, 16, 29), 32, {})["sglang"]["ids"] is None
    entry = drafter_ids((2, 16, 32), 32, {**SERVER, "setter_argument": [1, 15]})["sglang"]
    assert entry["ids"] is None and "L = 32" in entry["words"]


def test_slots_end_with_the_final_state_and_its_norm():
    words = slot_words((2, 4), "post_norm", 8)
    assert len(words) == 3
    assert "after the final norm" in words[-1]
