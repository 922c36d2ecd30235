"""A slow tokenizer that comes as Python code with its model, as Kimi's does: tiktoken inside, no character offsets."""

import base64
import json
from pathlib import Path

from helpers.mask_templates import Family
from helpers.second_mask import SPLIT, save_family

CODE = """
import base64
from pathlib import Path

import tiktoken
from transformers import PreTrainedTokenizer

SPLIT = {split!r}


class TinyTikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {{"vocab_file": "tiktoken.model"}}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, **kwargs):
        lines = Path(vocab_file).read_text().splitlines()
        ranks = {{base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}}
        self._model = tiktoken.Encoding("tiny", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={{}})
        self._names = {{rank: token.decode("latin-1") for token, rank in ranks.items()}}
        self._ranks = {{name: rank for rank, name in self._names.items()}}
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return len(self._names)

    def get_vocab(self):
        return dict(self._ranks) | dict(self.added_tokens_encoder)

    def _tokenize(self, text, **kwargs):
        return [self._names[number] for number in self._model.encode_ordinary(text)]

    def _convert_token_to_id(self, token):
        return self._ranks[token]

    def _convert_id_to_token(self, index):
        return self._names[index]

    def convert_tokens_to_string(self, tokens):
        return b"".join(token.encode("latin-1") for token in tokens).decode("utf-8", "replace")

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()
"""


def save_slow_family(folder: Path, family: Family) -> Path:
    """A folder with the tokenizer of ``save_family`` as a slow one: the same ids."""
    save_family(folder, family)
    fast = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    to_byte = _bytes_of_characters()
    lines = []
    for token, rank in fast["model"]["vocab"].items():
        content = bytes(to_byte[character] for character in token)
        lines.append(f"{base64.b64encode(content).decode()} {rank}")
    (folder / "tiktoken.model").write_text("\n".join(lines))
    (folder / "tokenization_tiny.py").write_text(CODE.format(split=SPLIT))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "TinyTikTokenTokenizer"
    config["auto_map"] = {"AutoTokenizer": ["tokenization_tiny.TinyTikTokenTokenizer", None]}
    config["added_tokens_decoder"] = {
        str(token["id"]): {name: token[name] for name in ("content", "special", "lstrip", "rstrip", "normalized")}
        for token in fast["added_tokens"]
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    return folder


def _bytes_of_characters() -> dict[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + place): byte for place, byte in enumerate(others)}
