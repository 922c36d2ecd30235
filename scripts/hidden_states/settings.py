"""The configuration: read, checked against the schema, defaults filled in, paths made absolute.

Standard library, YAML and jsonschema only: the Snakefile imports it at every start.
"""

import difflib
import json
import math
import os
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from hidden_states.conversations.sources import absolute_entry
from hidden_states.errors import UserError
from hidden_states.layout import Results

DEMO = "demo"
V1 = "speculators-v1"
"""A format, and the layers that go with it: captured where it is the only one and no others are asked for."""

REQUIRED = (("model", "path"), ("conversations", "files"))
"""Keys that a user's own configuration must have, so that no demo value leaks into a real run."""


def load(files: Iterable[Path], schema: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a user's configuration files, later ones over earlier ones, ``changes`` over all.

    Relative paths are looked up beside the file that has them, those of ``changes`` (of ``snakemake --config``) in the
    working directory. Raises UserError naming file and key.
    """
    merged: dict[str, Any] = {}
    for file in files:
        content = _read(file)
        _absolute_paths(content, file.resolve().parent)
        merged = _merge(merged, content)
    return check(_merge(merged, _of_working_directory(changes)), schema, own=True)


def load_demo(file: Path, schema: Path, repository: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The settings of the demo configuration, whose paths are relative to the repository, and ``changes`` over them."""
    content = _read(file)
    _absolute_paths(content, repository)
    return check(_merge(content, _of_working_directory(changes)), schema, own=False)


def check(config: dict[str, Any], schema: Path, own: bool) -> dict[str, Any]:
    """Fill in defaults and validate. ``own``: the keys that a user's file must have are required.

    Raises UserError for an unknown key (naming the nearest known one), a wrong value, or a missing key.
    """
    rules = yaml.safe_load(schema.read_text(encoding="utf-8"))
    errors = _VALIDATOR(rules).iter_errors(config)
    for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path]):
        raise UserError(_explain(error, rules))
    _check_layers(config.get("capture", {}).get("layers"))
    if own:
        for section, key in REQUIRED:
            if key not in config.get(section, {}):
                raise UserError(f"config key {section}.{key} is missing; your configuration must have it.")
    settings = _with_defaults(rules, config)
    if "layers" not in config.get("capture", {}) and settings["packaging"]["formats"] == [V1]:
        settings["capture"]["layers"] = V1
    if settings["capture"]["storage"] == "float8" and V1 in settings["packaging"]["formats"]:
        raise UserError(
            f"config key capture.storage = float8: {V1} in packaging.formats has no place for its scales, and its "
            "trainers read none. Take storage: bfloat16, or the format speculators alone."
        )
    return settings


def read_resolved(results: Results, schema: Path) -> dict[str, Any]:
    """The settings that the last run of this directory wrote to ``config.json``."""
    try:
        return check(json.loads(results.config.read_text(encoding="utf-8")), schema, own=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{results.config} cannot be read ({error}); name a --configfile.") from error


def model_folder(settings: dict[str, Any], results: Results) -> Path:
    """The folder of the model: the demo's, a local one, or the snapshot of a repository. Raises UserError."""
    from hidden_states.checkpoint import resolve_model

    path = settings["model"]["path"]
    if path == DEMO:
        if not (results.demo_model / "config.json").is_file():
            raise UserError(f"the demo model is not in {results.demo_model}; run `hidden-states demo-model` first.")
        return results.demo_model
    return resolve_model(path, settings["model"]["revision"])


def _of_working_directory(changes: dict[str, Any] | None) -> dict[str, Any]:
    changes = deepcopy(changes or {})
    _absolute_paths(changes, Path.cwd())
    return changes


def _is_integer(checker: Any, value: Any) -> bool:
    """JSON Schema takes 8.0 for an integer; range(8.0) does not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(checker: Any, value: Any) -> bool:
    """YAML's .nan and .inf are in no range, and a comparison with .nan never fails."""
    return _is_integer(checker, value) or (isinstance(value, float) and math.isfinite(value))


_VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


def _check_layers(layers: Any) -> None:
    """A list must be ascending; whether the model has them is seen when its own configuration is read."""
    if isinstance(layers, list) and sorted(set(layers)) != layers:
        raise UserError(
            f"config key capture.layers = {layers}: layers must be ascending and different, "
            f"such as {sorted(set(layers))}."
        )


class _UniqueKeys(yaml.SafeLoader):
    """YAML without keys given twice, of which plain YAML loaders keep the last and drop the others silently."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in seen:
                raise UserError(
                    f"{self.name}: the key {key.value} stands in line {seen[key.value]} and again in line {line}; "
                    "only one of them can count: put what belongs to it in one place."
                )
            seen[key.value] = line
        return node


def _read(file: Path) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as stream:  # with its name, for messages
            content = yaml.load(stream, _UniqueKeys)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"configuration {file} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"configuration {file} must hold keys and values, such as `model: {{path: …}}`.")
    return content


def _absolute_paths(config: dict[str, Any], folder: Path) -> None:
    """Resolve model.path (where it is a folder and no repository id) and conversations.files against ``folder``."""
    model, conversations = config.get("model"), config.get("conversations")
    if isinstance(model, dict) and isinstance(path := model.get("path"), str) and path != DEMO:
        local = folder / Path(path).expanduser()
        if local.is_dir() or path.startswith((".", "~", "/")) or path.count("/") != 1:
            model["path"] = os.path.normpath(local)
    if isinstance(conversations, dict):
        if isinstance(conversations.get("files"), str):
            conversations["files"] = [conversations["files"]]
        if isinstance(files := conversations.get("files"), list):
            conversations["files"] = [absolute_entry(file, folder) if isinstance(file, str) else file for file in files]


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = deepcopy(below)
    for key, value in above.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _with_defaults(rules: dict[str, Any], value: Any) -> Any:
    if not isinstance(value, dict) or "properties" not in rules:
        return value
    filled = {}
    for key, rule in rules["properties"].items():
        filled[key] = _with_defaults(rule, value.get(key, deepcopy(rule["default"])))
    return filled


def _explain(error: jsonschema.ValidationError, rules: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        name = f"{where}.{unknown}" if where else str(unknown)
        near = difflib.get_close_matches(str(unknown), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}."
        return f"config key {name} is not known; {hint} Every key: config/README.md."
    rule = error.schema if "description" in error.schema else _rule_at(rules, error.absolute_path)
    description = rule.get("description", "")
    message = error.message
    if error.validator == "oneOf":
        message = f"{error.instance!r} is none of the allowed values"
    return f"config key {where}: {message}. {description}".strip()


def _rule_at(rules: dict[str, Any], path: Iterable[Any]) -> dict[str, Any]:
    for part in path:
        inner = rules.get("properties", {}).get(part)
        if inner is None:
            break
        rules = inner
    return rules
