"""Layer numbers for the drafter: what each engine wants to read for the layers in a dataset.

Everywhere in this project L means the residual stream after L decoder layers. Trainers and servers name the same
layers by other numbers, and a drafter served with other layers than it was trained on is silently worse.
"""

from typing import Any

CONFIG_KEY = "eagle_aux_hidden_state_layer_ids"


def drafter_ids(layers: tuple[int, ...], num_layers: int, server: dict[str, Any]) -> dict[str, Any]:
    """Per engine: the key of the drafter's config, the ids to write there (null where nobody can say), and why.

    ``layers`` are the auxiliary L, ``server`` is ``ready.json``: what SGLang's own setter was given when it captured
    exactly these layers is what it must be given again when it serves a drafter trained on them.
    """
    ids = list(layers)
    argument, model = server.get("setter_argument"), server.get("model_class")
    own_way = f"SGLang maps ids to layers in its own way for each model family. {server.get('sglang_version')} with"
    if argument is None:
        words = "Not recorded: compare with what the server says it captures."
    elif num_layers in layers:
        argument = None
        words = f"L = {num_layers} is the final state; whether SGLang serves it as an auxiliary one depends on {model}."
    else:
        words = f"{own_way} {model}, given {argument}, was read back as L = {ids}."
    return {
        "speculators": {
            "key": CONFIG_KEY,
            "ids": ids,
            "words": "The numbers L, for the trainer's --target-layer-ids; the final state is not one of them.",
        },
        "vllm": {"key": CONFIG_KEY, "ids": ids, "words": "The numbers L, as the speculators config has them."},
        "sglang": {"key": f"eagle_config.{CONFIG_KEY}", "ids": argument, "words": words},
    }


def slot_words(layers: tuple[int, ...], final: str, num_layers: int) -> list[str]:
    """What each slot of ``hidden_states`` [num_tokens, slots, hidden_size] holds, in order."""
    norm = "before the final norm" if final == "pre_norm" else "after the final norm"
    return [f"L = {layer}: residual stream after {layer} decoder layers" for layer in layers] + [
        f"final: residual stream after all {num_layers} decoder layers, {norm} ({final})"
    ]
