"""The loss mask a second time, in a way that has nothing in common with the first: by the look of a family's answers
in the decoded text, and the character offsets of a fast tokenizer."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from helpers.mask_templates import Family
from hidden_states.conversations.batches import Sample
from hidden_states.conversations.shapes import Conversation

PROMPT_VARIABLES = ({}, {"enable_thinking": False}, {"thinking": False}, {"enable_thinking": True}, {"thinking": True})
EMPTY = ("", "<think></think>", "</think>")
"""What may stand between what the model is given and what it says, without white space."""
WRITTEN = re.compile(r"<think>(.*?)</think>", re.DOTALL)

WORDS = [
    "What is the capital of France? The capital of France is Paris.\n\nassistant user system tool: 12345",
    'def add(a, b):\n    return a + b\n\n\n{"name": "look", "arguments": {"at": "Oslo"}}\n',
    "Ça va? 東京は日本の首都です。今天天气很好。😀 👩‍👩‍👧 naïve café\t  spaces\r\n\r\n",
]
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""As the large models' tokenizers cut a text: line ends grow together, and with the punctuation before them."""


def save_family(folder: Path, family: Family, template: str | None = None) -> Path:
    """A folder with a byte-level tokenizer that has the control tokens and the template of ``family``."""
    import json

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        WORDS * 4, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": family.ends[0],
        "bos_token": family.begin or family.control[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": template or family.template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@dataclass
class Agreement:
    """What was compared, and the first words of what did not agree."""

    samples: int = 0
    answers: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    renderings: int = 0
    as_written: int = 0
    different: list[str] | None = None

    def __post_init__(self) -> None:
        self.different = []


def _thought_problem(message: dict[str, Any], before: str, said: str) -> str | None:
    """Whether an answer with reasoning begins with it, and does not follow a prompt that has ended all thinking."""
    written = WRITTEN.search(message["content"] or "")
    thought = message.get("reasoning_content") or (written.group(1) if written else "")
    if not thought.strip():
        return None
    if before.rstrip().endswith("</think>"):
        return f"reasoning behind a closed think block: {before[-40:] + said[:40]!r}"
    return None if "".join(thought.split()) in "".join(said.split()) else f"no reasoning in {said[:80]!r}"


class SecondWay:
    """Compares the samples of rows with masks computed again; ``answer``: how the family writes one."""

    def __init__(self, tokenizer: Any, answer: re.Pattern[str]) -> None:
        self._tokenizer, self._answer = tokenizer, answer
        self._is_marked = "endgeneration" in tokenizer.chat_template  # says itself where, whatever its prompt is
        self.agreement = Agreement()

    def compare(self, conversation: Conversation, messages: list[dict[str, Any]], samples: list[Sample]) -> None:
        """``messages``: in the form that the template takes. Every answer must have loss in exactly one sample."""
        answers = conversation.assistant_turns
        done = -1
        for sample in samples:
            last = sample.turn if sample.turn >= 0 else len(messages) - 1
            with_loss = [turn for turn in answers if done < turn <= last]
            problem = self._problem(conversation, messages[: last + 1], with_loss, sample)
            self.agreement.samples += 1
            if problem:
                self.agreement.different.append(problem)
            done = last
        if answers[-1] > done:
            self.agreement.different.append(f"turn {answers[-1]} has no loss anywhere")

    def _problem(
        self, conversation: Conversation, messages: list[dict[str, Any]], with_loss: list[int], sample: Sample
    ) -> str | None:
        ids = sample.input_ids.tolist()
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if encoded["input_ids"] != ids:
            return f"other ids than one encoding of the text: {text[-80:]!r}"
        found = [match.span(match.lastindex) for match in self._answer.finditer(text)]
        if len(found) != sum(message["role"] == "assistant" for message in messages):
            return f"{len(found)} answers seen in {text[-200:]!r}"
        spans = found[-len(with_loss) :]
        if problem := self._prompt_problem(conversation, messages, with_loss, spans, text):
            return problem
        for turn, (begin, end) in zip(with_loss, spans, strict=True):
            if problem := _thought_problem(messages[turn], text[:begin], text[begin:end]):
                return problem
            if "None" in text[begin:end] and "None" not in str(conversation.messages[turn]).replace(": None", ""):
                return f"nobody said None: {text[begin:end][:80]!r}"
        offsets = numpy.array(encoded["offset_mapping"])
        expected = numpy.zeros(len(ids), dtype=numpy.int8)
        for begin, end in spans:
            expected[(offsets[:, 0] >= begin) & (offsets[:, 1] <= end)] = 1
            if ((offsets[:, 0] < begin) & (offsets[:, 1] > begin)).any():
                return f"a token reaches over the beginning of {text[begin : begin + 40]!r}"
        if expected.tolist() != sample.loss_mask.tolist():
            place = int(numpy.flatnonzero(expected != sample.loss_mask)[0])
            return f"masks differ at {self._tokenizer.decode(ids[max(0, place - 12) : place + 4])!r}"
        self.agreement.answers += len(spans)
        self.agreement.tokens += len(ids)
        self.agreement.loss_tokens += int(expected.sum())
        return None

    def _prompt_problem(
        self,
        conversation: Conversation,
        messages: list[dict[str, Any]],
        with_loss: list[int],
        spans: list[tuple[int, int]],
        text: str,
    ) -> str | None:
        """Whether the text is a rendering, and what comes before each answer is what the model would be given."""
        if text == self._rendered(conversation, messages, False, {}):
            self.agreement.renderings += 1
        else:
            content = messages[-1]["content"] or ""
            if content.strip()[-20:] not in text:
                return f"not a rendering: {text[-200:]!r}"
            self.agreement.as_written += 1
        for turn, (begin, _) in zip(with_loss, spans, strict=True):
            if (
                turn
                and not self._is_marked
                and not any(
                    text.startswith(prompt) and "".join(text[len(prompt) : begin].split()) in EMPTY
                    for variables in PROMPT_VARIABLES
                    if (prompt := self._rendered(conversation, messages[:turn], True, variables)) is not None
                )
            ):
                return f"turn {turn} has another prompt: {text[max(0, begin - 60) : begin]!r}"
        return None

    def _rendered(
        self, conversation: Conversation, messages: list[dict[str, Any]], prompt: bool, variables: dict[str, Any]
    ) -> str | None:
        from hidden_states.conversations.rendering import TEMPLATE_DATE

        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=conversation.tools,
                add_generation_prompt=prompt,
                tokenize=False,
                strftime_now=TEMPLATE_DATE.strftime,
                **variables,
            )
        except Exception:
            return None
