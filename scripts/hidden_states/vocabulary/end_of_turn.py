"""At which tokens the model stops."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidden_states.checkpoint import NESTED_CONFIGS
from hidden_states.vocabulary.json_file import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def eos_ids(model: Path, tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Every id that ``generation_config.json``, ``config.json`` (with its nested text config) or the tokenizer calls
    ``eos_token_id``: chat models have several, and the files seldom name the same ones. Raises UserError."""
    config = read_json(model / "config.json")
    sources = [read_json(model / "generation_config.json"), config]
    sources += [config[name] for name in NESTED_CONFIGS if isinstance(config.get(name), dict)]
    found: list[Any] = [tokenizer.eos_token_id]
    for source in sources:
        value = source.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return frozenset(number for number in found if type(number) is int)
