"""Chat templates of our own that behave as those of real model families do, and how each writes an answer.

A family's ``answer`` is what a person who reads the model's documentation would look for in a rendered text: group 1
is what the model says, from behind its prompt up to and with its end of turn. The masks under test know none of this.
"""

import re
from dataclasses import dataclass, replace

HEAD = "{% for m in messages %}"
THOUGHT = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
"""Finds the last question: reasoning before it is dropped."""
SPLIT = (
    "{% set said = m.content or '' %}{% set why = m.reasoning_content or '' %}"
    "{% if not why and '</think>' in said %}{% set why = said.split('</think>')[0].split('<think>')[-1] %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}"
)
"""Takes reasoning out of the content."""
SPLIT_WITH_NULL = SPLIT.replace("m.content or ''", "m.content | string")
"""… and writes None for a content that is null."""
JSON_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}{{ '<tool_call>\n' }}"
    '{{ \'{"name": "\' + c.function.name + \'", "arguments": \' }}{{ c.function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """``ends``: tokens at which the model stops; ``plain``: added tokens that are no control tokens."""

    template: str
    answer: re.Pattern[str]
    control: tuple[str, ...]
    ends: tuple[str, ...]
    plain: tuple[str, ...] = ("<think>", "</think>")
    begin: str | None = None


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_HEAD = HEAD + "{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}"
CHATML_TAIL = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML_ANSWER = r"<\|im_start\|>assistant\n%s((?:(?!<\|im_end\|>).)*<\|im_end\|>)"


def answers(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


CHATML = Family(
    CHATML_HEAD + "{{ m.content or '' }}" + JSON_CALLS + CHATML_TAIL,
    answers(CHATML_ANSWER % ""),
    CHATML_TOKENS,
    ("<|endoftext|>", "<|im_end|>"),
)

CHATML_MARKED = Family(
    CHATML_HEAD
    + "{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}"
    + JSON_CALLS
    + "{{ '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m.content }}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    answers(CHATML_ANSWER % ""),
    CHATML_TOKENS,
    ("<|im_end|>",),
)

LLAMA3 = Family(
    "{{ bos_token }}"
    + HEAD
    + "{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
    + "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    + '{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    + "{{ m.tool_calls[0].function.arguments | tojson }}{{ '}<|eom_id|>' }}"
    + "{% else %}{{ m.content | trim }}{{ '<|eot_id|>' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    answers(
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n((?:(?!<\|eo[tm]_id\|>).)*(?:<\|eot_id\|>|<\|eom_id\|>))"
    ),
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    ("<|eot_id|>", "<|eom_id|>"),
    begin="<|begin_of_text|>",
)

QWEN3 = Family(
    THOUGHT
    + CHATML_HEAD
    + "{% if m.role == 'assistant' %}"
    + SPLIT
    + "{% if loop.index0 > ns.last and (loop.last or why) %}{{ '<think>\n' + why.strip('\n') + '\n</think>\n\n' }}"
    + "{{ said.lstrip('\n') }}{% else %}{{ said }}{% endif %}"
    + JSON_CALLS
    + "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    + "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    + "{% endif %}",
    answers(CHATML_ANSWER % r"(?:<think>\n\n</think>\n\n)?"),
    CHATML_TOKENS,
    ("<|im_end|>",),
)

QWEN3_THINKING = Family(
    THOUGHT
    + CHATML_HEAD
    + "{% if m.role == 'assistant' %}"
    + SPLIT
    + "{% if loop.index0 > ns.last %}{{ '<think>\n' + why.strip('\n') + '\n</think>\n\n' }}{% endif %}"
    + "{{ said.lstrip('\n') }}"
    + JSON_CALLS
    + "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
    answers(CHATML_ANSWER % r"(?:<think>\n\n</think>\n\n|<think>\n)?"),
    CHATML_TOKENS,
    ("<|im_end|>",),
)

QWEN3_MARKED = Family(
    CHATML_HEAD
    + "{% if m.role == 'assistant' %}"
    + SPLIT
    + "{% generation %}{{ '<think>\n' + why.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}"
    + JSON_CALLS
    + "{{ '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m.content }}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    answers(CHATML_ANSWER % r"(?:<think>\n\n</think>\n\n)?"),
    CHATML_TOKENS,
    ("<|im_end|>",),
)

QWEN3_THINKING_MARKED = replace(
    QWEN3_THINKING,
    template=QWEN3_MARKED.template.replace(
        "{{ '<|im_start|>assistant\n' }}{% endif %}",
        "{{ '<|im_start|>assistant\n<think>\n' }}"
        "{{ '\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}{% endif %}",
    ),
)

QWEN3_CODER = Family(
    CHATML_HEAD
    + "{% if m.tool_calls %}{% if m.content and m.content.strip() %}{{ m.content.strip() + '\n' }}{% endif %}"
    + "{% for c in m.tool_calls %}{{ '\n' if not loop.first or m.content }}"
    + "{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    + "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>\n' }}"
    + "{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}"
    + "{% endfor %}{% else %}{{ m.content }}{% endif %}"
    + CHATML_TAIL,
    answers(CHATML_ANSWER % ""),
    CHATML_TOKENS,
    ("<|im_end|>",),
)

DEEPSEEK_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
DEEPSEEK_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '<｜tool▁calls▁begin｜>' if loop.first }}"
    "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' }}"
    "{{ c.function.arguments | tojson }}{{ '<｜tool▁call▁end｜>' }}"
    "{{ '<｜tool▁calls▁end｜>' if loop.last }}{% endfor %}"
)
DEEPSEEK_OPENING = (
    "{{ bos_token }}{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% else %}"
    "{% set asked = not loop.previtem or loop.previtem.role != 'tool' %}"
)
DEEPSEEK_END = "<｜end▁of▁sentence｜>"
DEEPSEEK_ANSWER = (
    r"(?:<｜Assistant｜>%s|<｜tool▁outputs?▁end｜>(?!<｜tool▁output▁begin｜>|<｜tool▁outputs▁end｜>|<｜User｜>|\Z))"
    r"((?:(?!<｜end▁of▁sentence｜>).)*<｜end▁of▁sentence｜>)"
)


def deepseek(history: str, prompt: str, answer: str) -> Family:
    """``history``: what stands between header and words of an answer."""
    return Family(
        DEEPSEEK_OPENING
        + "{{ '<｜Assistant｜>"
        + history
        + "' if asked }}{{ (m.content or '').split('</think>')[-1] }}"
        + DEEPSEEK_CALLS
        + "{{ '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
        + "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<｜Assistant｜>' }}"
        + prompt
        + "{% endif %}",
        answers(DEEPSEEK_ANSWER % answer),
        DEEPSEEK_TOKENS,
        (DEEPSEEK_END,),
        begin="<｜begin▁of▁sentence｜>",
    )


DEEPSEEK_V3 = deepseek("", "", "")
DEEPSEEK_V31 = deepseek(
    "</think>",
    "{{ '<think>' if thinking is defined and thinking else '</think>' }}",
    "(?:<think></think>|</think>|<think>)",
)
DEEPSEEK_R1 = deepseek("", "{{ '<think>\n' }}", r"(?:<think>\n)?")

DEEPSEEK_V3_MARKED = replace(
    DEEPSEEK_V3,
    template="{% set ns = namespace(called=false) %}"
    + DEEPSEEK_V3.template.replace(
        "{{ '<｜Assistant｜>' if asked }}",
        "{% generation %}{{ '<｜Assistant｜>' if asked and not (m.tool_calls and ns.called) }}"
        "{% if m.tool_calls %}{% set ns.called = true %}{% endif %}",
    ).replace("{{ '<｜end▁of▁sentence｜>' }}", "{{ '<｜end▁of▁sentence｜>' }}{% endgeneration %}"),
)
"""Marks the header of an answer too, and forgets that of a second call."""

GLM = Family(
    "{{ '[gMASK]<sop>' }}"
    + THOUGHT
    + HEAD
    + "{% if m.role == 'assistant' %}"
    + SPLIT_WITH_NULL
    + "{{ '<|assistant|>\n<think>' + (why.strip() if loop.index0 > ns.last else '') + '</think>' }}"
    + "{% if said.strip() %}{{ '\n' + said.strip() }}{% endif %}"
    + "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name + '\n' }}"
    + "{% for k, v in c.function.arguments.items() %}{{ '<arg_key>' + k + '</arg_key>\n<arg_value>' }}"
    + "{{ v if v is string else v | tojson }}{{ '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}"
    + "{% elif m.role == 'tool' %}{{ '<|observation|>' if loop.previtem.role != 'tool' }}"
    + "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    + "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}"
    + "{{ '/nothink' if m.role == 'user' and enable_thinking is defined and not enable_thinking }}{% endif %}"
    + "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    + "{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking }}{% endif %}",
    answers(
        r"<\|assistant\|>(?:\n?<think></think>|</think>|<think>)?((?:(?!<\|user\|>|<\|observation\|>|<\|assistant\|>|<\|system\|>).)*"
        r"(?:<\|user\|>|<\|observation\|>|(?=<\|assistant\|>|<\|system\|>|\Z)))"
    ),
    ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
    plain=("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
)

GPT_OSS = Family(
    "{{ '<|start|>system<|message|>Reasoning: medium<|end|>' }}"
    + HEAD
    + "{% if m.role == 'assistant' %}{% set newest = loop.last and not add_generation_prompt %}"
    + "{% set left = messages[loop.index:] | selectattr('role', 'eq', 'assistant') | rejectattr('tool_calls') | list %}"
    + "{% if m.thinking and (newest or (m.tool_calls and not left)) %}"
    + "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    + "{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    + "{{ '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}"
    + "{{ c.arguments | tojson }}{{ '<|call|>' }}{% else %}"
    + "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    + "{{ '<|return|>' if newest else '<|end|>' }}{% endif %}"
    + "{% elif m.role == 'tool' %}"
    + "{{ '<|start|>functions.any to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}"
    + "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    + "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    answers(
        r"<\|start\|>assistant((?:(?!<\|return\|>|<\|call\|>|<\|end\|>(?!<\|start\|>assistant)).)*"
        r"(?:<\|return\|>|<\|call\|>|<\|end\|>))"
    ),
    ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
    ("<|return|>", "<|call|>"),
)

GPT_OSS_MARKED = replace(
    GPT_OSS,
    template=GPT_OSS.template.replace(
        "{% if m.role == 'assistant' %}", "{% if m.role == 'assistant' %}{% generation %}"
    ).replace("{% elif m.role == 'tool' %}", "{% endgeneration %}{% elif m.role == 'tool' %}"),
)
"""Marks the header of an answer too."""

GEMMA = Family(
    "{{ bos_token }}"
    + "{% set ns = namespace(system='') %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    + "{% set ns.system = messages[0].content + '\n\n' %}{% set turns = messages[1:] %}{% endif %}"
    + "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'tool' %}"
    + "{{ raise_exception('turns must alternate') }}{% endif %}"
    + "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    + "{{ ns.system if loop.first }}{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    answers(r"<start_of_turn>model\n((?:(?!<end_of_turn>).)*<end_of_turn>)"),
    ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    ("<eos>", "<end_of_turn>"),
    begin="<bos>",
)

MISTRAL = Family(
    "{{ bos_token }}"
    + HEAD
    + "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    + "{% elif m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
    + "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    + "{% elif m.tool_calls %}{{ '[TOOL_CALLS]' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    + "{{ eos_token }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
    answers(
        r"(?:\[/INST\]|\[/TOOL_RESULTS\]|(?<=</s>)(?!\[INST\]|\[TOOL_RESULTS\]|\[AVAILABLE_TOOLS\]|\Z))((?:(?!</s>).)*</s>)"
    ),
    (
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    ("</s>",),
    begin="<s>",
)

KIMI_TOKENS = (
    *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "[BOS]", "[EOS]"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
KIMI_BODY = (
    "{% for c in m.tool_calls or [] %}{{ '<|tool_calls_section_begin|>' if loop.first }}"
    "{{ '<|tool_call_begin|>functions.' + c.function.name + ':' ~ loop.index0 ~ '<|tool_call_argument_begin|>' }}"
    "{{ c.function.arguments | tojson }}{{ '<|tool_call_end|>' }}"
    "{{ '<|tool_calls_section_end|>' if loop.last }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}"
)
KIMI_HEAD = "{{ '<|im_' + ('system' if m.role == 'tool' else m.role) + '|>' + m.role + '<|im_middle|>' }}"
KIMI_ANSWER = r"<\|im_assistant\|>assistant<\|im_middle\|>%s((?:(?!<\|im_end\|>).)*<\|im_end\|>)"
KIMI_K2 = Family(
    HEAD + KIMI_HEAD + "{{ m.content or '' }}" + KIMI_BODY + "{% endif %}",
    answers(KIMI_ANSWER % "(?:<think></think>)?"),
    KIMI_TOKENS,
    ("<|im_end|>", "[EOS]"),
)
KIMI_SPLIT = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
"""Finds the last answer without a call: reasoning up to and with it is dropped, be it the newest."""
KIMI_THOUGHT = (
    "{% if m.role == 'assistant' %}"
    "{{ '<think>' + (m.reasoning_content or '' if loop.index0 > ns.last else '') + '</think>' }}{% endif %}"
)
KIMI_NAMED_BY_ID = KIMI_BODY.replace("functions.' + c.function.name + ':' ~ loop.index0 ~ '", "' + c.id + '")
KIMI_K2_THINKING = Family(
    KIMI_SPLIT + HEAD + KIMI_HEAD + KIMI_THOUGHT + "{{ m.content or '' }}" + KIMI_NAMED_BY_ID + "{% endif %}",
    answers(KIMI_ANSWER % "(?:<think></think>)?"),
    KIMI_TOKENS,
    ("<|im_end|>", "[EOS]"),
)
KIMI_K25 = Family(
    KIMI_SPLIT
    + HEAD
    + KIMI_HEAD
    + KIMI_THOUGHT
    + "{{ ('## Return of ' ~ m.tool_call_id ~ '\n' if m.role == 'tool' else '') + (m.content or '') }}"
    + KIMI_NAMED_BY_ID
    + "{{ '<think></think>' if thinking is defined and not thinking else '<think>' }}{% endif %}",
    answers(KIMI_ANSWER % r"(?:<think></think>|<think>)"),
    KIMI_TOKENS,
    ("<|im_end|>", "[EOS]"),
)

MINIMAX_M2 = Family(
    THOUGHT
    + "{% if messages[0].role != 'system' %}{{ ']~!b[]~b]system\nYou help.[e~[\n' }}{% endif %}"
    + HEAD
    + "{{ ']~!b[' if loop.first and m.role == 'system' }}{% if m.role == 'assistant' %}"
    + SPLIT_WITH_NULL
    + "{{ ']~b]ai\n' }}{% if why and loop.index0 > ns.last %}{{ '<think>\n' + why + '\n</think>\n\n' }}{% endif %}"
    + "{{ said }}{% for c in m.tool_calls or [] %}{{ '\n<minimax:tool_call>\n' if loop.first }}"
    + "{{ '<invoke name=\"' + c.function.name + '\">\n' }}{{ c.function.arguments | tojson }}{{ '</invoke>\n' }}"
    + "{{ '</minimax:tool_call>' if loop.last }}{% endfor %}"
    + "{% else %}{{ ']~b]' + m.role + '\n' + m.content }}{% endif %}{{ '[e~[\n' }}"
    + "{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}",
    answers(r"\]~b\]ai\n(?:<think>\n)?((?:(?!\[e~\[).)*\[e~\[)"),
    ("]~!b[", "]~b]", "[e~["),
    ("[e~[",),
    plain=("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
)

PHI = Family(
    HEAD
    + "{% if m.role in ['system', 'user', 'assistant'] %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}"
    + "{% endif %}{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}",
    answers(r"<\|assistant\|>\n((?:(?!<\|end\|>).)*<\|end\|>)"),
    ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ("<|endoftext|>", "<|end|>"),
)

PHI_MARKED = replace(
    PHI,
    template="{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}"
    + "{% generation %}{{ m.content + '<|end|>\n' }}{% endgeneration %}"
    + "{% else %}{{ m.content + '<|end|>\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
    + "{% else %}{% generation %}{{ eos_token }}{% endgeneration %}{% endif %}",
)

FAMILIES = {
    "chatml": CHATML,
    "chatml_marked": CHATML_MARKED,
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "qwen3_thinking": QWEN3_THINKING,
    "qwen3_marked": QWEN3_MARKED,
    "qwen3_thinking_marked": QWEN3_THINKING_MARKED,
    "qwen3_coder": QWEN3_CODER,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v3_marked": DEEPSEEK_V3_MARKED,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_r1": DEEPSEEK_R1,
    "glm": GLM,
    "gpt_oss": GPT_OSS,
    "gpt_oss_marked": GPT_OSS_MARKED,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "kimi_k2": KIMI_K2,
    "kimi_k2_thinking": KIMI_K2_THINKING,
    "kimi_k25": KIMI_K25,
    "minimax_m2": MINIMAX_M2,
    "phi": PHI,
    "phi_marked": PHI_MARKED,
}
