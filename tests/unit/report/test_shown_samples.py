"""Samples with their masks: nothing of the text is lost, and what is marked is what the mask says."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.byte_tokenizer import BYTES, save_byte_model
from helpers.finished_run import Run, Sample
from helpers.tiny_tokenizer import APPENDING, load, save_model, save_tokenizer
from hidden_states.errors import UserError
from hidden_states.report import conversations
from hidden_states.report.conversations import Segment, model_decoder, segments, shown_samples
from hidden_states.report.corpus_sections import _conversations as conversations_html

WORDS = ["The ", "sea ", "said", "\n", "no", "."]


def decode(ids):
    return "".join(WORDS[number] for number in ids)


def test_text_is_cut_where_the_mask_changes():
    assert segments([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 0, 1], decode) == [
        Segment("The sea ", False),
        Segment("said\n", True),
        Segment("no", False),
        Segment(".", True),
    ]
    assert segments([2, 2], [1, 1], decode) == [Segment("saidsaid", True)]


def test_a_space_that_a_tokenizer_drops_at_the_beginning_is_kept():
    runs = segments([0, 1, 2], [0, 1, 1], lambda ids: decode(ids[::1]).replace("sea", " sea").lstrip())
    assert [run.text for run in runs] == ["The ", " sea said"]


def test_a_sign_whose_bytes_lie_on_both_sides_of_a_border_harms_nothing_else(tmp_path: Path):
    tokenizer = load(save_tokenizer(tmp_path, APPENDING))
    ids = tokenizer("say 鱼!", add_special_tokens=False)["input_ids"]
    words = [tokenizer.decode([number]) for number in ids]
    border = next(index for index, word in enumerate(words) if "\ufffd" in word) + 1
    mask = [0] * border + [1] * (len(ids) - border)
    first, second = segments(ids, mask, model_decoder(tmp_path, False))
    assert first.text.startswith("say ") and second.text.endswith("!") and second.has_loss


def test_the_middle_of_a_long_sample_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(conversations, "TOKENS", 4)
    runs = segments([0, 1, 1, 1, 1, 1, 5], [0, 0, 0, 0, 1, 1, 1], decode)
    assert runs == [Segment("The sea ", False), Segment("", False, 3), Segment("sea .", True)]


def make_run(root: Path, sizes: list[int]) -> Run:
    chunks = [
        [Sample([1, 2, 3, number, chunk], [0, 1, 1, 0, 1], None) for number in range(size)]
        for chunk, size in enumerate(sizes)
    ]
    return Run(root, chunks).write()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([0, 0], []),
        ([2], [0, 1]),
        ([0, 12, 0], [0, 2, 4, 6, 8, 10]),
        ([4, 0, 4], [0, 1, 2, 4, 5, 6]),
        ([5] * 12, [0, 10, 20, 30, 40, 50]),
    ],
)
def test_samples_come_from_all_over_the_corpus(tmp_path, sizes, expected):
    run = make_run(tmp_path, sizes)
    shown = shown_samples(run.results, [f"{chunk:04d}" for chunk in range(len(sizes))], str)
    assert [sample.sample_id for sample in shown] == expected
    assert all((sample.num_tokens, sample.num_loss_tokens, len(sample.segments)) == (5, 3, 4) for sample in shown)


def test_rows_beyond_the_first_row_group_are_found(tmp_path):
    run = make_run(tmp_path, [40])
    path = run.results.tokens("0000")
    pq.write_table(pq.read_table(path), path, row_group_size=7)
    assert [sample.sample_id for sample in shown_samples(run.results, ["0000"], str)] == [0, 6, 13, 20, 26, 33]


def test_only_what_counts_is_marked_and_no_text_becomes_markup(tmp_path):
    tokenizer = load(save_tokenizer(tmp_path, APPENDING))
    turns = [{"role": "user", "content": "<b>Hi</b> & \x00bye"}, {"role": "assistant", "content": "</mark>Hello\nyou"}]
    prompt = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    before, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, whole))
    mask = [0] * len(before) + [1] * (len(ids) - len(before) - 1) + [0]
    runs = segments(ids, mask, model_decoder(tmp_path, False))
    assert "".join(run.text for run in runs) == whole
    sample = conversations.ShownSample(7, "a.jsonl row 3", len(ids), sum(mask), runs)
    page = conversations_html([sample])
    assert "<mark>&lt;/mark&gt;Hello<i>↵</i>\nyou&lt;|end|&gt;</mark>" in page
    assert page.count("<mark>") == 2 and "&lt;b&gt;Hi&lt;/b&gt; &amp; ␀bye" in page and "\x00" not in page


def test_a_tokenizer_in_code_of_the_model_decodes_too(tmp_path):
    folder = save_byte_model(tmp_path)
    with pytest.raises(UserError, match="trust_remote_code"):
        model_decoder(folder, False)
    ids = [BYTES + 2, *"鱼 ".encode(), BYTES + 3, *b"yes  no", BYTES + 5]
    runs = segments(ids, [0] * 6 + [1] * 8, model_decoder(folder, True))
    assert runs == [Segment("<|user|>鱼 <|assistant|>", False), Segment("yes  no<|end|>", True)]


def test_no_tokenizer_is_said_and_is_no_failure(tmp_path):
    with pytest.raises(UserError, match="tokenizer"):
        model_decoder(tmp_path, False)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        model_decoder(tmp_path, False)
    assert "could not be loaded" in conversations_html(None)


def test_the_command_shows_samples_and_brings_no_torch(tmp_path):
    """In a process of its own, from the settings to the page."""
    model = save_model(tmp_path / "model")
    run = make_run(tmp_path, [3, 3])
    for chunk in run.chunks:
        for sample in chunk:
            sample.states = np.ones((5, 4, 4), "<u2")
    run.write().package()
    settings = run.settings | {"model": {"path": str(model), "revision": None, "trust_remote_code": False}}
    code = (
        "import json, sys; from pathlib import Path; from hidden_states.layout import Results;"
        "from hidden_states.commands.report import run;"
        "run(json.loads(sys.argv[1]), Results(Path(sys.argv[2])), None); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(settings), str(run.results.root)], check=True)
    page = (run.results.report / "run.html").read_text()
    assert page.count("<details") == 6 and "sample 5 ·" in page
