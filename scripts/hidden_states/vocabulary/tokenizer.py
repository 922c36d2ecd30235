"""The tokenizer that belongs to the model, or a refusal.

transformers falls back to a generic class without an error when it may not run a model's own tokenizer code. Ids then
stay inside the vocabulary, so only the class and the ids of the added tokens show it.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidden_states.errors import UserError
from hidden_states.vocabulary.json_file import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "PythonBackend")
"""Names of classes that follow ``tokenizer.json`` to the letter and know no model of their own."""

PROBE = "Hello  world,\n\n  it's 2024: naïve café, 東京 \U0001f600\t<x>{'a': [1, 23456]}"


def load_tokenizer(model: Path, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of the folder ``model`` and check that it is the one its files describe.

    Raises UserError when there is none, when another class is loaded than ``tokenizer_config.json`` names, or when
    an added token does not have the id that the files give it.
    """
    from transformers import AutoTokenizer

    config = read_json(model / "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=trust_remote_code)
    except Exception as error:  # remote code and file readers raise whatever they like
        raise UserError(
            f"{model}: its tokenizer cannot be loaded ({_words(error)}). Complete the folder; if the tokenizer "
            "comes with Python code of its own that you trust, set model.trust_remote_code: true."
        ) from error
    _check_class(model, type(tokenizer).__name__, config)
    _check_added_tokens(model, tokenizer, config)
    _compare_with_file(model, tokenizer)
    return tokenizer


def _check_class(model: Path, loaded: str, config: dict[str, Any]) -> None:
    remote = config.get("auto_map") or {}
    remote = remote.get("AutoTokenizer") if isinstance(remote, dict) else remote
    if remote:
        references = [remote] if isinstance(remote, str) else [name for name in remote if name]
        named = [reference.split(".")[-1] for reference in references]
    else:
        named = [config["tokenizer_class"]] if config.get("tokenizer_class") else []
    plain = {name.removesuffix("Fast") for name in named}
    if not named or loaded.removesuffix("Fast") in plain:
        return
    if not remote and loaded in GENERIC and (model / "tokenizer.json").is_file():
        return  # tokenizer.json says everything that the class named would have said
    advice = (
        "The model brings its own tokenizer code; set model.trust_remote_code: true if you trust it."
        if remote
        else "The transformers version here does not know that class; install the one the model asks for."
    )
    raise UserError(
        f"{model / 'tokenizer_config.json'} names the tokenizer class {' or '.join(named)}, but {loaded} was loaded, "
        f"which may give other ids. {advice}"
    )


def _check_added_tokens(model: Path, tokenizer: "PreTrainedTokenizerBase", config: dict[str, Any]) -> None:
    expected: dict[str, tuple[int, str]] = {}
    tokens = read_json(model / "tokenizer.json").get("added_tokens")
    for entry in tokens if isinstance(tokens, list) else ():
        expected[entry["content"]] = (entry["id"], "tokenizer.json")
    for number, entry in (config.get("added_tokens_decoder") or {}).items():
        expected[entry["content"]] = (int(number), "tokenizer_config.json")
    for content, (number, file) in expected.items():
        found = tokenizer.convert_tokens_to_ids(content)
        if found != number:
            raise UserError(
                f"{model / file} gives the added token {content!r} the id {number}, but the tokenizer loaded "
                f"({type(tokenizer).__name__}) gives it {found}. The tokenizer does not belong to this model; "
                "copy its files again, or set model.trust_remote_code: true if it needs its own code."
            )


def _compare_with_file(model: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Warn when the class treats a text in another way than ``tokenizer.json`` alone."""
    if not (model / "tokenizer.json").is_file():
        return
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(model / "tokenizer.json")).encode(PROBE, add_special_tokens=False).ids
    if list(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) != plain:
        log.warning(
            "%s: %s gives other ids than tokenizer.json alone for a text with spaces, line ends, digits and CJK; "
            "check that the model was trained with that class",
            model,
            type(tokenizer).__name__,
        )


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
