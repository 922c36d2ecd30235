"""The configuration: defaults, refusals, paths."""

from pathlib import Path

import pytest
import yaml
from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.settings import check, load, load_demo, model_folder

OWN = {"model": {"path": "org/model"}, "conversations": {"files": ["a.jsonl"]}}


@pytest.fixture
def schema(repository) -> Path:
    return repository / "config" / "schema.yaml"


def write(folder: Path, content: dict, name: str = "my.yaml") -> Path:
    (folder / name).write_text(yaml.safe_dump(content))
    return folder / name


def test_every_key_has_a_description_and_a_default(schema):
    def walk(rule, name):
        assert rule.get("description"), f"{name} has no description"
        assert "default" in rule, f"{name} has no default"
        for key, inner in rule.get("properties", {}).items():
            walk(inner, f"{name}.{key}")

    walk(yaml.safe_load(schema.read_text()), "config")


def test_defaults_are_those_of_the_design(schema):
    settings = check({}, schema, own=False)
    assert settings["conversations"] == {
        "files": ["resources/conversations/demo.jsonl"],
        "over_length": "reject",
        "loss": "all",
        "control_tokens": "reject",
        "max_tokens": 8192,
        "min_loss_tokens": 1,
        "duplicates": "keep",
        "max_rejected": 0.5,
    }
    assert settings["extraction"] == {"chunks": 8, "concurrency": 32, "max_failed": 0.001}
    assert settings["server"]["linger_seconds"] == 60
    assert settings["self_check"] == {"prompts": 8, "reference": "auto", "min_replay_agreement": 0.95}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extraction": {"chunk": 3}}, "extraction.chunk is not known; did you mean chunks?"),
        ({"modle": {}}, "config key modle is not known; did you mean model?"),
        ({"extraction": {"chunks": 0}}, "config key extraction.chunks: 0 is less than the minimum"),
        ({"extraction": {"chunks": "eight"}}, "config key extraction.chunks: 'eight' is not of type"),
        ({"capture": {"layers": "eagle2"}}, "config key capture.layers: 'eagle2' is none of the allowed values"),
        ({"capture": {"layers": []}}, "config key capture.layers"),
        ({"conversations": {"files": []}}, "config key conversations.files"),
        ({"model": []}, "config key model"),
        ({"server": {"arguments": {"a": {}}}}, "config key server.arguments.a"),
        ({"server": {"arguments": {1: 2, "a": 3}}}, "config key server.arguments: 1 is not of type 'string'"),
        ({"extraction": {"chunks": 8.0}}, "config key extraction.chunks: 8.0 is not of type 'integer'"),
        ({"extraction": {"max_failed": float("nan")}}, "config key extraction.max_failed: nan is not of type 'number'"),
        ({"server": {"linger_seconds": float("inf")}}, "config key server.linger_seconds: inf is not of type"),
        ({"capture": {"layers": [5, 2]}}, "config key capture.layers = [5, 2]: layers must be ascending and different"),
        ({"capture": {"layers": [2, 2]}}, "config key capture.layers = [2, 2]: layers must be ascending and different"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_its_full_name(schema, change, words):
    with pytest.raises(UserError) as caught:
        check(change, schema, own=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(("section", "key"), [("model", "path"), ("conversations", "files")])
def test_no_demo_value_leaks_into_a_users_own_run(schema, tmp_path, section, key):
    content = {name: dict(value) for name, value in OWN.items()}
    del content[section][key]
    with pytest.raises(UserError, match=f"config key {section}.{key} is missing"):
        load([write(tmp_path, content)], schema)


def test_relative_paths_are_looked_up_beside_the_file_that_has_them(schema, tmp_path):
    (tmp_path / "models" / "m").mkdir(parents=True)
    file = write(tmp_path, {"model": {"path": "models/m"}, "conversations": {"files": "data/*.jsonl"}})
    settings = load([file], schema)
    assert settings["model"]["path"] == str(tmp_path / "models" / "m")
    assert settings["conversations"]["files"] == [str(tmp_path / "data" / "*.jsonl")]


def test_a_repository_id_stays_as_it_is(schema, tmp_path):
    assert load([write(tmp_path, OWN)], schema)["model"]["path"] == "org/model"


def test_a_later_file_wins_key_by_key(schema, tmp_path):
    first = write(tmp_path, OWN | {"extraction": {"chunks": 3, "concurrency": 5}})
    second = write(tmp_path, {"extraction": {"chunks": 4}}, "second.yaml")
    assert load([first, second], schema)["extraction"] == {"chunks": 4, "concurrency": 5, "max_failed": 0.001}


def test_the_demo_is_relative_to_the_repository(schema, repository):
    settings = load_demo(repository / "config" / "config.yaml", schema, repository)
    assert settings["conversations"]["files"] == [str(repository / "resources" / "conversations" / "demo.jsonl")]
    assert settings["model"]["path"] == "demo"


def test_overrides_of_the_command_line_are_checked_too(schema, tmp_path):
    files = [write(tmp_path, OWN | {"extraction": {"chunks": 3, "concurrency": 5}})]
    assert load(files, schema, {"extraction": {"chunks": 2}})["extraction"]["chunks"] == 2
    assert load(files, schema, {"extraction": {"chunks": 2}})["extraction"]["concurrency"] == 5
    with pytest.raises(UserError, match="extraction.chunk is not known"):
        load(files, schema, {"extraction": {"chunk": 2}})


def test_paths_of_the_command_line_are_those_of_the_working_directory(schema, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    changes = {"conversations": {"files": ["own.jsonl"]}}
    settings = load([write(tmp_path, OWN)], schema, changes)
    assert settings["conversations"]["files"] == [str(tmp_path / "work" / "own.jsonl")]
    assert changes == {"conversations": {"files": ["own.jsonl"]}}


@pytest.mark.parametrize(
    ("own", "changes", "layers"),
    [
        ({}, {}, "eagle3"),
        ({"packaging": {"formats": ["speculators-v1"]}}, {}, "speculators-v1"),
        ({}, {"packaging": {"formats": ["speculators-v1"]}}, "speculators-v1"),
        ({"packaging": {"formats": ["speculators", "speculators-v1"]}}, {}, "eagle3"),
        ({"packaging": {"formats": ["speculators-v1"]}, "capture": {"layers": "eagle3"}}, {}, "eagle3"),
        ({"capture": {"layers": [3, 5]}}, {"packaging": {"formats": ["speculators-v1"]}}, [3, 5]),
    ],
)
def test_the_layers_follow_the_only_format_unless_they_are_given(schema, tmp_path, own, changes, layers):
    assert load([write(tmp_path, OWN | own)], schema, changes)["capture"]["layers"] == layers


@pytest.mark.parametrize(("text", "words"), [("a: [", "is not YAML"), ("- 1", "must hold keys and values")])
def test_a_file_that_is_no_configuration_is_named(schema, tmp_path, text, words):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        load([tmp_path / "bad.yaml"], schema)
    assert "bad.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "server: {slots: 1}\nmodel: {path: a/b}\nserver: {slots: 2}\n",
            "key server stands in line 1 and again in line 3",
        ),
        ("server:\n  slots: 1\n  'slots': 2\n", "key slots stands in line 2 and again in line 3"),
        ('{"server": {}, "server": {}}', "key server stands in line 1 and again in line 1"),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_its_lines(schema, tmp_path, text, words):
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        load([tmp_path / "twice.yaml"], schema)
    assert "twice.yaml" in str(caught.value)


def test_a_key_that_overrides_a_merged_one_is_no_repetition(schema, tmp_path):
    text = "model: {path: a/b}\nconversations: {files: [c.jsonl]}\nextraction: {<<: {chunks: 3}, chunks: 4}\n"
    (tmp_path / "merged.yaml").write_text(text)
    assert load([tmp_path / "merged.yaml"], schema)["extraction"]["chunks"] == 4


def test_a_model_folder_that_is_not_there_is_named(schema, tmp_path):
    settings = load([write(tmp_path, OWN | {"model": {"path": "./nowhere"}})], schema)
    with pytest.raises(UserError, match="there is no folder"):
        model_folder(settings, Results(tmp_path))


def test_the_demo_model_must_have_been_made(schema, tmp_path):
    with pytest.raises(UserError, match="hidden-states demo-model"):
        model_folder(check({}, schema, own=False), Results(tmp_path))


def test_float8_has_no_place_in_the_format_of_speculators_v1(schema):
    capture = {"capture": {"storage": "float8"}}
    assert check(capture, schema, own=False)["capture"]["storage"] == "float8"
    for formats in (["speculators-v1"], ["speculators", "speculators-v1"]):
        with pytest.raises(UserError, match=r"capture\.storage = float8: speculators-v1 in packaging\.formats"):
            check(capture | {"packaging": {"formats": formats}}, schema, own=False)
