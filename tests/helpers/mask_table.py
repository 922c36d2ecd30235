"""Templates × conversations: what becomes of the rows, and whether both ways of computing the mask agree."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.mask_templates import FAMILIES, Family
from helpers.second_mask import Agreement, SecondWay, save_family
from hidden_states.conversations.batches import BatchTokenizer, batches
from hidden_states.conversations.reasons import Rejected
from hidden_states.conversations.rows import Row, read_rows
from hidden_states.conversations.shapes import Conversation, read_shape

LIMITS = {"max_tokens": 65536, "min_loss_tokens": 1}

FILES = {
    r"GLM": "glm",
    r"glm": "glm",
    r"gpt-oss|gptoss": "gpt_oss",
    r"[Gg]emma": "gemma",
    r"[Mm]istral": "mistral",
    r"Kimi-K2.5": "kimi_k25",
    r"Kimi": "kimi_k2",
    r"MiniMax": "minimax_m2",
    r"[Pp]hi": "phi",
    r"[Ll]lama-3|llama3": "llama3",
    r"DeepSeek-V(3\.[12]|4)": "deepseek_v31",
    r"deepseekv3_training": "deepseek_v3",
    r"R1|deepseek-r1|DeepSeek-V3|deepseekv3": "deepseek_r1",
    r"Coder": "qwen3_coder",
    r"QwQ|Thinking|[Qq]wen3[._][56]": "qwen3_thinking",
    r"Qwen3|qwen3": "qwen3",
    r"Qwen|qwen2": "chatml",
}
"""Real templates by the name of their file → whose tokens and form of answer they have."""

TOKEN = re.compile(r"<\|[^|<>\s]+\|>|<｜[^｜<>\s]+｜>|\[/?[A-Z_]{3,}\]|</?s>")


@dataclass
class Line:
    """One template: ``reasons`` counts the rejected rows, ``details`` holds an example of each."""

    name: str
    rows: int
    accepted: int
    samples: int
    reasons: Counter[str]
    details: dict[str, str]
    agreement: Agreement


def real_templates(folder: Path) -> dict[str, Family]:
    """The templates in a folder that are of a family known here, with the control tokens that they name."""
    found = {}
    for file in sorted(folder.glob("*.jinja")):
        name = next((FILES[pattern] for pattern in FILES if re.search(pattern, file.name)), None)
        if name is not None:
            family, source = FAMILIES[name], file.read_text(encoding="utf-8")
            more = sorted(set(TOKEN.findall(source)) - set(family.control) - {"[TOOL_CALLS]["})
            found[file.stem] = replace(family, template=source, control=(*family.control, *more))
    return found


def read_all(files: Iterable[Path]) -> list[Row]:
    """Every row of the files, and every fifth once more with reasoning, in a field of its own or written out."""
    rows = [row for file in files for row in read_rows(file)]
    for number, row in enumerate(rows[::5]):
        if isinstance(row.value, dict) and (value := _with_reasoning(row.value, written=number % 2 == 0)):
            rows.append(replace(row, source_file=f"{row.source_file}+reasoning", value=value))
    return rows


def _with_reasoning(value: dict[str, Any], written: bool) -> dict[str, Any] | None:
    """The row with a thought before every answer; None for one that is no conversation."""
    try:
        shape = read_shape(value)
    except Rejected:
        return None
    if not isinstance(shape, Conversation):
        return None
    messages, asked = [], "something"
    for message in shape.messages:
        if message["role"] == "user":
            asked = message["content"][:40].strip() or asked
        thought = f"They ask: {asked}\n\nI know this."
        if message["role"] == "assistant" and written and message["content"]:
            message = message | {"content": f"<think>\n{thought}\n</think>\n\n{message['content']}"}
        elif message["role"] == "assistant":
            message = message | {"reasoning_content": thought}
        messages.append(message)
    return {"messages": messages, "tools": shape.tools}


def measure(name: str, family: Family, rows: list[Row]) -> Line:
    """Every row through the first way, and every accepted one through the second."""
    from hidden_states.vocabulary.tokenizer import load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(save_family(Path(folder), family), trust_remote_code=False)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    tokenize = BatchTokenizer(tokenizer, LIMITS, len(tokenizer), ends)
    second = SecondWay(tokenizer, family.answer)
    line = Line(name, 0, 0, 0, Counter(), {}, second.agreement)
    for outcome in tokenize.results(batches(rows)):
        for row, result in outcome:
            line.rows += 1
            if isinstance(result, Rejected):
                line.reasons[result.reason] += 1
                where = f"{Path(row.source_file).name}:{row.source_row}"
                line.details.setdefault(result.reason, f"{where}: {result.detail}")
                continue
            line.accepted += 1
            line.samples += len(result)
            shape = read_shape(row.value)
            if isinstance(shape, Conversation):
                _, messages = tokenize.renderer.whole(shape)
                second.compare(shape, messages, result)
    return line
