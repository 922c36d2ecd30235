"""Tiny tokenizers and model folders, made on the spot, and chat templates of our own that behave as real ones do."""

import json
import struct
from pathlib import Path
from typing import Any

CONTROL = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
PLAIN_ADDED = ("<think>", "</think>")

HEAD = "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}"
TAIL = "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"

APPENDING = HEAD + "{{ m.content }}<|end|>\n" + TAIL
"""Every turn: header, content, end of turn, line end."""

MARKED = (
    HEAD
    + (
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{{ '\n' }}"
        "{% else %}{{ m.content }}<|end|>{{ '\n' }}{% endif %}"
    )
    + TAIL
)
"""As APPENDING, with generation markers."""

MARKED_IN_MACRO = (
    "{% macro say(m) %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{{ '\n' }}{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}" + TAIL
)
"""As MARKED, with the markers where counting rendered characters goes wrong."""

FORGETTING = (
    HEAD
    + (
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}<|end|>\n"
    )
    + TAIL
)
"""Drops the reasoning of every answer but the last, as reasoning models' templates do."""

STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}" + APPENDING
)
"""Refuses turns that do not alternate."""

HEADER_ALWAYS = HEAD + "{{ m.content }}<|end|>\n{% endfor %}"
"""Knows no generation prompt, although answers have a header."""

NO_HEADER = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
"""Knows no generation prompt and needs none."""

GLUED = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""No control tokens; a word grows together with the space before it, across the end of the prompt."""

CALLS_AS_OBJECTS = (
    HEAD
    + (
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v | tojson }}{% endfor %}"
        "</call>{% endfor %}<|end|>\n"
    )
    + TAIL
)
CALLS_AS_TEXT = (
    HEAD
    + (
        "{% if m.content is not none %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}"
        "{{ '<call>' + c.function.name + ' ' + c.function.arguments + '</call>' }}{% endfor %}<|end|>\n"
    )
    + TAIL
)
"""Two ways to render a call: arguments as an object, and as a text (an object raises)."""

DATED = "<|system|>\nToday is {{ strftime_now('%d %b %Y') }}.<|end|>\n" + APPENDING

TEXT = [
    "What is the capital of France? The capital of France is Paris.",
    "assistant user system: name three rivers, and say why you like them.",
    "Hello world 12345 { } [ ] \" ' \\ / naïve café 東京 😀\n\n\ttabs and  spaces\n",
]


def save_tokenizer(folder: Path, template: str | None, special: tuple[str, ...] = CONTROL) -> Path:
    """Write a byte-level BPE tokenizer with the control tokens and ``template`` into ``folder``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "model_max_length": 100_000,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {"content": token, "special": token in special}
            for token in (*special, *PLAIN_ADDED)
        },
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path) -> Any:
    from hidden_states.vocabulary.tokenizer import load_tokenizer

    return load_tokenizer(folder, trust_remote_code=False)


def save_model(
    folder: Path,
    template: str | None = APPENDING,
    vocab_size: int = 410,
    rows: int | None = None,
    special: tuple[str, ...] = CONTROL,
) -> Path:
    """A folder with tokenizer, config.json and the header of an embedding [rows, 8]."""
    save_tokenizer(folder, template, special)
    config = {
        "model_type": "llama",
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "hidden_size": 8,
        "vocab_size": vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rows = vocab_size if rows is None else rows
    size = rows * 8 * 2
    tensor = {"dtype": "BF16", "shape": [rows, 8], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return folder
