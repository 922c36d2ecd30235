"""A tokenizer of another model is found before anything is tokenized; odd but real cases go on, and are explained."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.byte_tokenizer import BYTES, save_byte_model
from helpers.tiny_tokenizer import load, save_model
from hidden_states import settings as settings_module
from hidden_states.checkpoint import Checkpoint
from hidden_states.conversations.corpus import tokenize_corpus
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.vocabulary.fit import check_vocabulary
from hidden_states.vocabulary.tokenizer import load_tokenizer

SCHEMA = Path(__file__).parents[3] / "config" / "schema.yaml"
IDS = 382
"""Of the tiny tokenizer: 380 trained ones, six of them control tokens (<|begin|> is 0, <|end|> 5), and two added."""
WORD = 200
"""An ordinary token's id."""


def check(folder: Path, **config: Any) -> dict[str, Any]:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return check_vocabulary(Checkpoint(folder), load(folder))


def with_head(folder: Path, rows: int, name: str = "lm_head.weight") -> Path:
    """Another weight file with only that tensor, [rows, 8]."""
    tensor = {"dtype": "BF16", "shape": [rows, 8], "data_offsets": [0, rows * 16]}
    header = json.dumps({name: tensor}).encode()
    (folder / "second.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(rows * 16))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model")


def test_every_number_is_counted(tmp_path: Path) -> None:
    found = check(
        with_head(save_model(tmp_path, rows=448), 416), bos_token_id=0, eos_token_id=[5, 3], pad_token_id=None
    )
    assert {name: found[name] for name in found if name not in ("special", "notes", "warnings")} == {
        "tokenizer_ids": IDS,
        "highest_id": IDS - 1,
        "added_tokens": 8,
        "config_ids": 410,
        "embedding_rows": 448,
        "lm_head_rows": 416,
        "ids_without_row": 0,
        "rows_without_id": 28,
    }
    assert found["special"]["eos"] == {"model": {"3": "'<|assistant|>'", "5": "'<|end|>'"}, "tokenizer": 5}
    assert found["special"]["pad"] == {"model": {}, "tokenizer": None}
    assert found["warnings"] == []
    words = " ".join(found["notes"])
    for word in ("382 ids (8 of them added tokens)", "last 38 rows", "lm_head has 416 rows", "28 of the model's ids"):
        assert word in words


def test_a_head_that_cannot_be_counted_or_is_tied_stops_nothing(model: Path) -> None:
    assert check(model)["lm_head_rows"] is None
    assert check(model, tie_word_embeddings=True)["lm_head_rows"] == 410


def test_a_head_with_fewer_rows_than_ids_is_a_warning(tmp_path: Path) -> None:
    (warning,) = check(with_head(save_model(tmp_path), 408))["warnings"]
    assert "lm_head has 408 rows" in warning and "vocab_size = 410" in warning


def test_ids_without_a_row_are_named_and_go_on(tmp_path: Path) -> None:
    found = check(save_model(tmp_path, vocab_size=381))
    assert found["ids_without_row"] == 1
    assert "the model has no row for 1 of the tokenizer's ids: 381 ('</think>')" in found["warnings"][0]


def test_rows_that_padding_does_not_explain_are_a_warning(tmp_path: Path) -> None:
    (warning,) = check(save_model(tmp_path, vocab_size=500))["warnings"]
    assert "118 of the model's ids stand for no token, more than padding explains" in warning


@pytest.mark.parametrize("rows", [190, 765])
def test_a_vocabulary_of_less_than_half_the_size_is_refused(tmp_path: Path, rows: int) -> None:
    with pytest.raises(UserError, match=rf"382 ids, but the model {rows} .*tokenizer of another model"):
        check(save_model(tmp_path, vocab_size=rows))


@pytest.mark.parametrize("outside", [WORD, [WORD, 405], 1_000_000])
def test_a_model_that_stops_at_ordinary_words_is_refused(model: Path, outside: Any) -> None:
    with pytest.raises(UserError, match=r"config.json: eos_token_id is .* whose own eos token is 5 \('<\|end\|>'\)"):
        check(model, bos_token_id=0, eos_token_id=outside)


def test_the_first_token_counts_where_no_last_one_is_named(model: Path) -> None:
    with pytest.raises(UserError, match="bos_token_id is 200"):
        check(model, bos_token_id=WORD)


def test_the_nested_config_of_a_wrapper_is_read(model: Path) -> None:
    inner = json.loads((model / "config.json").read_text())
    with pytest.raises(UserError, match="eos_token_id is 200"):
        check(model, text_config=inner | {"eos_token_id": WORD})


def test_one_right_id_in_either_file_is_enough(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    (warning,) = check(model, bos_token_id=0, eos_token_id=WORD)["warnings"]
    assert "eos_token_id 200 of config.json is no control token" in warning


def test_ids_that_were_never_set_are_a_warning_where_the_size_is_right(tmp_path: Path) -> None:
    """transformers writes bos 1 and eos 2 into the config of a model that names none; CodeGen was published so."""
    model = save_model(tmp_path / "right", special=())
    found = check(model, bos_token_id=1, eos_token_id=2)
    assert "eos_token_id 2 of config.json is no control token" in found["warnings"][1]
    with pytest.raises(UserError, match="another model"):
        check(model, bos_token_id=7, eos_token_id=2)
    with pytest.raises(UserError, match="another model"):
        check(save_model(tmp_path / "large", special=(), vocab_size=500), bos_token_id=1, eos_token_id=2)


@pytest.mark.parametrize("pad", [-1, WORD, 100_000])
def test_a_made_up_padding_id_refuses_nothing(model: Path, pad: int) -> None:
    found = check(model, bos_token_id=0, eos_token_id=5, pad_token_id=pad)
    assert len(found["warnings"]) == (0 if pad < 0 else 1)


def test_an_end_of_turn_at_which_the_model_does_not_stop_is_a_warning(model: Path) -> None:
    (warning,) = check(model, eos_token_id=3)["warnings"]
    assert "eos token 5 ('<|end|>') is none at which the model stops: 3 ('<|assistant|>')" in warning


@pytest.fixture
def tokenize(model: Path, tmp_path: Path) -> Any:
    """Tokenize one conversation with the model."""

    def run() -> dict[str, Any]:
        file = tmp_path / "one.jsonl"
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        file.write_text(json.dumps({"messages": turns}))
        changes = {"model": {"path": str(model)}, "conversations": {"files": [str(file)]}}
        settings = settings_module.check(changes, SCHEMA, own=True)
        specification = SimpleNamespace(
            fingerprint="f" * 32, layers=(2, 4, 5), final="pre_norm", dtype="BF16", hidden_size=8
        )
        return tokenize_corpus(settings, model, Results(tmp_path / "results"), specification)

    return run


def test_the_summary_tells_what_was_found(model: Path, tokenize: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    summary = tokenize()
    assert summary["vocabulary"] == check_vocabulary(Checkpoint(model), load(model))
    assert "vocabulary: the tokenizer has 382 ids" in caplog.text


def test_nothing_is_tokenized_with_another_models_tokenizer(model: Path, tokenize: Any, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": WORD}))
    with pytest.raises(UserError, match="another model"):
        tokenize()
    assert not (tmp_path / "results").exists()


def test_the_demo_model_fits(demo_model: Path) -> None:
    found = check_vocabulary(Checkpoint(demo_model), load(demo_model))
    assert (found["warnings"], found["rows_without_id"], found["lm_head_rows"]) == ([], 16, 1024)


def test_a_template_of_another_model_is_a_warning(model: Path) -> None:
    tokenizer = load(model)
    for template in ("{#<|x|>#}{{ '<|end|>' }}<think>", {"default": "<|user|>", "tool_use": "{{ a < b | c }}"}, None):
        tokenizer.chat_template = template
        assert check_vocabulary(Checkpoint(model), tokenizer)["warnings"] == []
    for template in ("{{ '<|im_end|>' }}<｜User｜><|end|>", {"default": "<|im_end|>", "tool_use": "<｜User｜>"}):
        tokenizer.chat_template = template
        (warning,) = check_vocabulary(Checkpoint(model), tokenizer)["warnings"]
        assert warning.startswith("the chat template writes <|im_end|>, <｜User｜>, which")


def test_a_slow_tokenizer_in_code_of_the_model_is_compared_as_well(tmp_path: Path) -> None:
    """Such code may raise for an id that it does not have."""
    folder = save_byte_model(tmp_path)
    tokenizer = load_tokenizer(folder, trust_remote_code=True)
    eos = BYTES + 5
    for config, words in (
        ({"eos_token_id": eos}, None),
        ({"eos_token_id": 270}, "no token"),
        ({"eos_token_id": 65}, "0x41"),
    ):
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | config))
        if words is None:
            found = check_vocabulary(Checkpoint(folder), tokenizer)
            assert (found["tokenizer_ids"], found["added_tokens"], found["warnings"]) == (BYTES + 6, 6, [])
        else:
            with pytest.raises(UserError, match=rf"eos_token_id is .*{words}.* own eos token is 261"):
                check_vocabulary(Checkpoint(folder), tokenizer)
