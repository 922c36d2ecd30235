"""Layer numbers: L = the residual stream after L layers."""

import pytest
from hidden_states.errors import UserError
from hidden_states.layers import resolve_layers


@pytest.mark.parametrize(
    ("setting", "num_layers", "expected"),
    [
        ("eagle3", 61, (2, 30, 58)),
        ("speculators-v1", 61, (3, 31, 59)),
        ("eagle3", 36, (2, 18, 33)),
        ([3, 31, 59], 61, (3, 31, 59)),
        ([36], 36, (36,)),
    ],
)
def test_layers_of_known_recipes(setting, num_layers, expected):
    assert resolve_layers(setting, num_layers) == expected


@pytest.mark.parametrize(
    ("setting", "num_layers", "message"),
    [
        ([0, 1], 8, "layer 0 does not exist"),
        ([2, 9], 8, "layer 9 does not exist; the model has 8 layers"),
        ([3, 2], 8, "ascending and different"),
        ([2, 2], 8, "ascending and different"),
        ("eagle3", 4, "ascending and different"),
    ],
)
def test_impossible_layers_are_refused_with_the_config_key(setting, num_layers, message):
    with pytest.raises(UserError, match=message) as caught:
        resolve_layers(setting, num_layers)
    assert "capture.layers" in str(caught.value)
