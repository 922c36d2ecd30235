"""The user's ``server.arguments``: every kind that is refused, other names, flags, and what the fingerprint sees."""

import pytest
from hidden_states.errors import UserError
from hidden_states.server import arguments
from hidden_states.server.arguments import ALIASES, NEUTRAL, normalise, to_flags
from hidden_states.server.specification import build


def assert_refused(name: str, value: object, words: str = "") -> None:
    with pytest.raises(UserError) as raised:
        normalise({name: value})
    assert str(raised.value).startswith(f"config key server.arguments.{name} = {value!r} is refused: ")
    assert words in str(raised.value)


@pytest.mark.parametrize("name", sorted(arguments.REFUSED))
def test_what_is_ours_or_breaks_the_capture_is_refused(name):
    assert_refused(name, True, arguments.REFUSED[name])
    assert_refused(name.replace("_", "-"), "x", arguments.REFUSED[name])
    assert normalise({name: False}) == normalise({name: None}) == {}


@pytest.mark.parametrize("name", ["speculative_algorithm", "speculative_num_steps", "disaggregation_mode"])
def test_a_whole_family_is_refused(name):
    assert_refused(name, "x")


@pytest.mark.parametrize("name", sorted(arguments.ONE_ONLY))
def test_what_may_only_be_one_is_refused_otherwise(name):
    assert_refused(name, 2, arguments.ONE_ONLY[name])
    assert_refused(name, True, arguments.ONE_ONLY[name])
    assert normalise({name: 1}) == {name: 1}


@pytest.mark.parametrize("name", sorted(arguments.MUST_BE_TRUE))
def test_what_must_be_true_cannot_be_turned_off(name):
    assert_refused(name, False, arguments.MUST_BE_TRUE[name])
    assert normalise({name: True}) == {name: True}


@pytest.mark.parametrize("name", ["cuda_graph_bs_prefill", "cuda_graph_bs_p", "enable_prefill_cuda_graph"])
def test_a_prefill_graph_is_refused_by_whatever_name(name):
    assert_refused(name, True, "prefill graphs stay off")


@pytest.mark.parametrize("name", ["cuda_graph_max_bs", "cuda_graph_bs_decode", "disable_cuda_graph_padding"])
def test_settings_of_the_other_graphs_are_the_users_own(name):
    assert normalise({name: 8}) == {name: 8}


@pytest.mark.parametrize(
    "name",
    [
        "enable_mixed",
        "enable_mixed_chun",
        "disable_radix",
        "speculative",
        "pp_s",
        "pipeline_parallel",
        "data_parallel_siz",
        "tensor_parallel",
        "api_k",
    ],
)
def test_a_shortened_name_that_the_parser_of_sglang_would_complete_is_refused(name):
    assert_refused(name, 2, "write names in full")


@pytest.mark.parametrize("alias", sorted(set(ALIASES) - {"model"}))
def test_another_name_of_an_argument_is_the_argument(alias):
    assert normalise({alias: 1}) == normalise({"--" + alias.replace("_", "-"): 1}) == {ALIASES[alias]: 1}
    with pytest.raises(UserError, match=f"server.arguments.{alias} and .{ALIASES[alias]} are the same"):
        normalise({alias: 1, ALIASES[alias]: 1})


def test_a_refused_argument_is_refused_by_its_other_name_as_the_user_wrote_it():
    assert_refused("model", "x", "model.path")
    assert_refused("pp", 2, "pipeline")


def test_flags():
    assert to_flags({"disable_radix_cache": True}) == ["--disable-radix-cache"]
    assert to_flags({"a_b": 0, "c": "x y", "d": 0.5}) == ["--a-b", "0", "--c", "x y", "--d", "0.5"]
    assert to_flags({"bs": [1, 2]}) == ["--bs", "1", "2"]
    assert to_flags({"off": False, "unset": None}) == []


def test_arguments_that_do_not_change_the_states_stay_out_of_the_fingerprint(settings, results):
    before = build(settings, results)
    settings["server"]["arguments"] = dict.fromkeys(sorted(NEUTRAL), 1)
    after = build(settings, results)
    assert after.fingerprint == before.fingerprint
    assert after.server_hash != before.server_hash


@pytest.mark.parametrize(
    "given", [{"tp_size": 2}, {"dtype": "float32"}, {"quantization": "fp8"}, {"one_that_is_not_known_yet": True}]
)
def test_all_others_are_in_the_fingerprint(settings, results, given):
    before = build(settings, results).fingerprint
    settings["server"]["arguments"] = given
    assert build(settings, results).fingerprint != before
