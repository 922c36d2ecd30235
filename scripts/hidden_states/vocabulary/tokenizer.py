"""The tokenizer that belongs to the model, or a refusal.

transformers falls back to a generic class without an error when it may not run a model's own tokenizer code. Ids then
stay inside the vocabulary, so only the class and the ids of the added tokens show it. Since its release 5 it also
builds some classes anew from the vocabulary and passes over the rest of ``tokenizer.json``: a byte-level tokenizer
under the name LlamaTokenizerFast, as DeepSeek's distilled Llamas have it, would give other ids than the model was
trained with.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidden_states.errors import UserError
from hidden_states.vocabulary.json_file import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

PROBE = "Hello  world,\n\n  it's 2024: naïve café, 東京 \U0001f600\t<x>{'a': [1, 23456]}"


def load_tokenizer(model: Path, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of the folder ``model`` and check that it is the one its files describe: without code of the
    model's own, ``tokenizer.json`` is followed to the letter where there is one.

    Raises UserError when there is none, when another class is loaded than ``tokenizer_config.json`` names, or when
    an added token does not have the id that the files give it.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = read_json(model / "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=trust_remote_code)
    except Exception as error:  # remote code and file readers raise whatever they like
        raise UserError(
            f"{model}: its tokenizer cannot be loaded ({_words(error)}). Complete the folder; if the tokenizer "
            "comes with Python code of its own that you trust, set model.trust_remote_code: true."
        ) from error
    agrees, own_code = _agrees_with_file(model, tokenizer), _classes_of_its_own(config)
    if agrees is None or own_code:
        _check_class(model, type(tokenizer).__name__, config)
    if agrees is False:
        log.warning(
            "%s: %s gives other ids than tokenizer.json alone for a text with spaces, line ends, digits and CJK; %s",
            model,
            type(tokenizer).__name__,
            "check that the model was trained with that class" if own_code else "tokenizer.json is followed",
        )
        if not own_code:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model), trust_remote_code=False)
    _check_added_tokens(model, tokenizer, config)
    return tokenizer


def _classes_of_its_own(config: dict[str, Any]) -> list[str]:
    """Names of the classes in the model's own code, where its tokenizer has such."""
    remote = config.get("auto_map") or {}
    remote = remote.get("AutoTokenizer") if isinstance(remote, dict) else remote
    references = [remote] if isinstance(remote, str) else [name for name in remote or () if name]
    return [reference.split(".")[-1] for reference in references]


def _check_class(model: Path, loaded: str, config: dict[str, Any]) -> None:
    remote = _classes_of_its_own(config)
    named = remote or ([config["tokenizer_class"]] if config.get("tokenizer_class") else [])
    plain = {name.removesuffix("Fast") for name in named}
    if not named or loaded.removesuffix("Fast") in plain:
        return
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


def _agrees_with_file(model: Path, tokenizer: "PreTrainedTokenizerBase") -> bool | None:
    """Whether it treats a text as ``tokenizer.json`` alone does; None where there is no such file."""
    if not (model / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(model / "tokenizer.json")).encode(PROBE, add_special_tokens=False).ids
    return list(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) == plain


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
