"""A model folder whose tokenizer is slow Python code of its own, as Kimi's is: no ``tokenizer.json``, no character
offsets, one token a byte."""

import json
from pathlib import Path

from helpers.tiny_tokenizer import APPENDING, CONTROL, save_model

BYTES = 256
CODE = """
from transformers import PreTrainedTokenizer


class ByteTokenizer(PreTrainedTokenizer):
    model_input_names = ["input_ids"]

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {self._convert_id_to_token(number): number for number in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text):
        return [self._convert_id_to_token(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return int(token[2:], 16)

    def _convert_id_to_token(self, number):
        if number > 255:
            raise KeyError(number)
        return f"0x{number:02x}"

    def convert_tokens_to_string(self, tokens):
        return b"".join(
            bytes([int(token[2:], 16)]) if token.startswith("0x") else token.encode() for token in tokens
        ).decode("utf-8", "replace")

    def save_vocabulary(self, folder, prefix=None):
        return ()
"""


def save_byte_model(folder: Path, vocab_size: int = 280) -> Path:
    """Control tokens have the ids from BYTES on."""
    save_model(folder, vocab_size=vocab_size)
    (folder / "tokenizer.json").unlink()
    (folder / "byte_tokenizer.py").write_text(CODE)
    config = {
        "tokenizer_class": "ByteTokenizer",
        "auto_map": {"AutoTokenizer": ["byte_tokenizer.ByteTokenizer", None]},
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": APPENDING,
        "added_tokens_decoder": {
            str(BYTES + number): {"content": token, "special": True} for number, token in enumerate(CONTROL)
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
