"""Which layers are captured.

Layer number L means the residual stream after L decoder layers, 1 ≤ L ≤ n, the same as Hugging Face's
``hidden_states[L]`` for L < n. L = n is the state before the final norm.
"""

from hidden_states.errors import UserError


def resolve_layers(setting: str | list[int], num_layers: int) -> tuple[int, ...]:
    """The auxiliary layers, ascending; the final state always follows them as the last slot.

    ``eagle3`` is what SGLang and speculators ≥ 0.5 capture by default, ``speculators-v1`` what speculators
    0.3 and 0.4 captured. A list is taken as it is. Raises UserError for a layer the model does not have,
    a repeated one, or a model too shallow for a default.
    """
    where = "config key capture.layers"
    if setting == "eagle3":
        layers = [2, num_layers // 2, num_layers - 3]
    elif setting == "speculators-v1":
        layers = [3, num_layers // 2 + 1, num_layers - 2]
    else:
        layers = list(setting)
    bad = [layer for layer in layers if not 1 <= layer <= num_layers]
    if bad:
        raise UserError(
            f"{where} = {setting}: layer {bad[0]} does not exist; the model has {num_layers} layers, "
            f"so choose numbers from 1 to {num_layers}."
        )
    if sorted(set(layers)) != layers:
        raise UserError(
            f"{where} = {setting}: layers must be ascending and different, but a model of {num_layers} layers "
            f"gives {layers}; write the layers you want as a list, such as [1, 2, 3]."
        )
    return tuple(layers)
