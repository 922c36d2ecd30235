"""Control tokens that the chat template writes, against those that the tokenizer has."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTROL_TOKEN = re.compile(r"<[|｜][^|｜<>\s'\"{}]{1,60}[|｜]>")
"""As most families write theirs: ``<|im_end|>``, ``<｜User｜>``. What a template puts together of parts is not seen."""
COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def unknown_template_tokens(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """What looks like a control token in the chat template, or in one of several, and is no token of the tokenizer:
    it would be split into ordinary ones. A template of another model shows so."""
    templates = tokenizer.chat_template or ""
    texts = templates.values() if isinstance(templates, dict) else [templates]
    written = {token for text in texts for token in CONTROL_TOKEN.findall(COMMENT.sub("", text))}
    known = set(tokenizer.get_vocab()) | {str(token) for token in tokenizer.added_tokens_decoder.values()}
    return sorted(written - known)
