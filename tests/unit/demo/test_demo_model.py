"""The demo model: what it must have to show what large models need."""

import json

import pytest
import torch
from hidden_states.checkpoint import Checkpoint
from hidden_states.demo_model import CONVERSATIONS, SPECIAL_TOKENS, corpus, make_demo_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_model_is_made_the_same_way_every_time(demo_model, repository, tmp_path):
    make_demo_model(tmp_path / "again", corpus(repository / CONVERSATIONS))
    names = sorted(path.name for path in demo_model.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((demo_model / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_shape_has_what_deepseek_has(demo_model):
    config = json.loads((demo_model / "config.json").read_text())
    widths = [config[key] for key in ("kv_lora_rank", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim")]
    assert len(set(widths)) == 4
    assert config["num_hidden_layers"] >= 8
    assert config["n_routed_experts"] > config["num_experts_per_tok"] > 1
    assert config["rope_scaling"]["type"] == "yarn"


def test_norm_weights_keep_states_before_and_after_a_norm_apart(demo_model):
    checkpoint = Checkpoint(demo_model)
    spread = checkpoint.load(checkpoint.final_norm).float().log().std().item()
    assert 0.35 < spread < 0.65


def test_transformers_runs_it_and_its_logits_prefer_some_token(demo_model):
    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.arange(100)[None]).logits[0]
    assert torch.isfinite(logits).all()
    top = logits.topk(2).values
    assert (top[:, 0] - top[:, 1]).median() > 0.1


def test_tokenizer_maps_special_tokens_and_renders_conversations(demo_model):
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    turns = [{"role": "user", "content": "Grüße 👋"}, {"role": "assistant", "content": "hello"}]
    text = tokenizer.decode(tokenizer.apply_chat_template(turns, return_dict=False))
    assert text == "<|begin|><|user|>Grüße 👋<|end|><|assistant|>hello<|end|>"
    assert len(tokenizer) < Checkpoint(demo_model).config.vocab_size


def test_template_only_appends_and_renders_tools_and_calls(demo_model):
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
        {"role": "assistant", "content": "Noon."},
    ]
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]

    def render(count: int, generation_prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            turns[:count], tools=tools, add_generation_prompt=generation_prompt, tokenize=False
        )

    whole = render(len(turns), False)
    assert '<|assistant|>{"name": "clock", "arguments": {"zone": "UTC"}}<|end|><|tool|>12:00<|end|>' in whole
    assert whole.startswith('<|begin|><|system|>[{"type": "function"')
    assert all(whole.startswith(render(count, False)) for count in range(1, len(turns)))
    assert all(whole.startswith(render(count, True)) for count in (2, 4))


def test_template_refuses_a_role_it_does_not_know(demo_model):
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    with pytest.raises(Exception, match="a turn of developer is not foreseen"):
        tokenizer.apply_chat_template([{"role": "developer", "content": "x"}], tokenize=False)
