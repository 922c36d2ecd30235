"""docs/families.md, from docs/families.json alone."""

from typing import Any

INTRODUCTION = """\
# Model families

What the capture plug-in takes out of the real SGLang server, for a tiny random model of each architecture, compared
with a forward of the same weights in Transformers, in float32. Every slot of every token is compared. `make families`
measures all of it again and writes this page and `families.json`; `make families ONLY="llama qwen3"` measures some and
keeps the rest.

The models have 8 layers of width 256 and 1024 embedding rows, 24 more than the tokenizer has tokens, and lie in several
files with an index; qwen2 and gemma3 tie the output projection to the embedding. The weights of all norms are
log-normal (σ = 0.5), so that a state from the wrong side of a norm shows; two neighbouring layers differ by about a
quarter of the state's length, so that a layer off by one shows. Eight prompts of 1 to 420 tokens are sent at once, with
prefill chunks of 128 tokens.

Kimi-K2.5 is its multimodal wrapper (text only) around the weights of a DeepSeek-V3 language model, under the names that
its checkpoint has; the reference is the language model alone, of the same tensors. MiniMax-M2's norm of queries and
keys is a kernel for CUDA in SGLang; on the CPU the plug-in puts SGLang's own norm in torch in its place.
"""

MEASURED = """\
## What was captured

L is the residual stream after L layers; `final` is the last slot, before or after the final norm. Each slot: the
**median / largest** relative error over all tokens. `bfloat16`: the medians of the same slots in Transformers' own
forward in bfloat16, that is, what rounding costs without a server. Replay: the share of positions at which
`lm_head(norm(final slot))` has the server's own most likely token.
"""

REFUSED = """\
## What cannot be captured here

In the words of SGLang, or of the plug-in where it refuses.

Gemma 3 has the setter, and takes the number of a layer as Llama does; but SGLang 0.5.23 then hands out `hidden_states`
without the `residual` that its layers carry beside it. Before the plug-in refused it, the three layers [2, 4, 5] of the
model above (with a `branch_gain` of 0.5) were 0.91, 0.94 and 0.95 of the reference's length away from it in median; the
final state, which comes from the norm, 0.019, where Transformers in bfloat16 has 0.020.
"""

ROUNDING = """\
## Where the errors come from

They are what bfloat16 costs: {within} of the {slots} slots above have a median no larger than Transformers' own forward
in bfloat16; the largest ratio of the two is {ratio:.2f}. How much that is depends on the model, and the table below
takes it apart, for random Llamas in Transformers alone: the median relative error after the first layer and before the
final norm; the same at the end when only the residual stream is rounded, between layers, and all else is float32; and
the stream's length at the end over that of the embedding.
"""

CONCLUSIONS = """\
- Width does not matter at the same `branch_gain`: each number is rounded by itself, to 8 bits.
- Depth does: every layer rounds the sum again, and the errors grow about as the root of the number of layers.
- What the layers add matters most. A branch (attention, MLP) is a chain of rounded products whose error is a fixed
  share of its output, about 1 %; the more of the stream comes from branches, the closer the stream gets to that. With a
  `branch_gain` of 0.25, which the models above have, 8 layers stay below 0.01; with 0.5 the same model has 0.014.
- With `initializer_range` 0.1, as the tiny Llama of the tests has it, the embedding is so small beside what the first
  layer adds that after one layer the stream is nearly all branch, and has a branch's error from then on. That is why
  the tests see medians up to 0.015 there. At a width of 256 the same range multiplies by far more, and nothing is left
  of the embedding; with 0.02, the usual value, a model of that width stays below 0.01.
- A mixture of experts has a tail: rounding sends a few tokens to other experts. The median does not see it, the largest
  error does; for that reason the experts of the models above add little (`EXPERT_GAIN` in
  `tests/helpers/family_models.py`).
"""


def render(content: dict[str, Any]) -> str:
    """The page. ``content``: ``families``, lists of rows by name, each row measured or refused; ``rounding``."""
    rows = [row for family in content["families"].values() for row in family]
    versions = sorted({f"SGLang {row['sglang']}, Transformers {row['transformers']}" for row in rows})
    parts = [INTRODUCTION, f"Measured with {'; '.join(versions)}, on the CPU.\n", MEASURED]
    head = ["family", "class in SGLang", "layers asked", "final", "given to the setter", "read back"]
    head += ["error of each slot", "bfloat16", "replay"]
    parts.append(_table(head, [_measured(row) for row in rows if "words" not in row]))
    refused = [
        [row["family"], _numbers(row["layers"]), f"`{row['final']}`", row["words"]] for row in rows if "words" in row
    ]
    parts += [REFUSED, _table(["family", "layers asked", "final", "why"], refused)]
    head = ["width", "layers", "weights", "after the first layer", "at the end", "only the stream", "growth"]
    parts += [_rounding_text(rows), _table(head, [_rounding(row) for row in content["rounding"]]), CONCLUSIONS]
    return "\n".join(parts)


def _rounding_text(rows: list[dict[str, Any]]) -> str:
    ratios = [
        slot["median"] / median
        for row in rows
        if "words" not in row
        for slot, median in zip(row["slots"], row["bfloat16"], strict=True)
    ]
    within = sum(ratio <= 1 for ratio in ratios)
    return ROUNDING.format(within=within, slots=len(ratios), ratio=max(ratios, default=0.0))


def _measured(row: dict[str, Any]) -> list[str]:
    names = [*(f"L{slot['layer']}" for slot in row["slots"][:-1]), "final"]
    errors = [
        f"{name} {slot['median']:.4f} / {slot['max']:.3f}" for name, slot in zip(names, row["slots"], strict=True)
    ]
    return [
        row["family"],
        f"`{row['model_class']}`",
        _numbers(row["layers"]),
        f"`{row['final']}`",
        _numbers(row["setter_argument"]),
        _numbers(row["read_back"]),
        "<br>".join(errors),
        "<br>".join(f"{median:.4f}" for median in row["bfloat16"]),
        f"{row['replay_agreement']:.4f}",
    ]


def _rounding(row: dict[str, Any]) -> list[str]:
    shape = row["shape"]
    key = "branch_gain" if shape["initializer_range"] is None else "initializer_range"
    figures = [f"{row[name]:.4f}" for name in ("first", "last", "stream")]
    return [
        str(shape["hidden_size"]),
        str(shape["num_layers"]),
        f"`{key}` {shape[key]}",
        *figures,
        f"{row['growth']:.1f}",
    ]


def _numbers(layers: list[int]) -> str:
    return f"[{', '.join(map(str, layers))}]"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
