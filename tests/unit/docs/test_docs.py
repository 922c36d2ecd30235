"""The documentation says what the code does: every key and default, every reject reason, every verb, every link."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hidden_states.cli import VERBS
from hidden_states.conversations.reasons import REASONS
from hidden_states.settings import check

PAGES = ("README.md", "CHANGELOG.md", "config/README.md", "docs/troubleshooting.md")


@pytest.fixture
def schema_file(repository: Path) -> Path:
    return repository / "config" / "schema.yaml"


@pytest.fixture
def config_page(repository: Path) -> str:
    return (repository / "config" / "README.md").read_text(encoding="utf-8")


def keys(rule: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema's keys that hold a value, by dotted name."""
    for key, inner in rule["properties"].items():
        dotted = f"{name}.{key}" if name else key
        if "properties" in inner:
            yield from keys(inner, dotted)
        else:
            yield dotted, inner


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def wanted_keys(schema_file: Path) -> list[str]:
    schema = yaml.safe_load(schema_file.read_text(encoding="utf-8"))
    return [
        f"| `{name}` | `{json.dumps(rule['default'])}` | {cell(rule['description'])} |" for name, rule in keys(schema)
    ]


def table_rows(page: str, section: str) -> list[str]:
    """The rows below the head of the first table under this heading."""
    body = page.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in body.splitlines() if line.startswith("|")][2:]


def require_table(page: str, section: str, wanted: list[str], source: str) -> None:
    found = table_rows(page, section)
    missing = [row for row in wanted if row not in found]
    surplus = [row for row in found if row not in wanted]
    advice = [f"config/README.md, section {section!r}, differs from {source}."]
    advice += ["Add these lines:", *missing] if missing else []
    advice += ["Remove these lines:", *surplus] if surplus else []
    assert found == wanted, "\n".join([*advice, "The order is that of the source."])


def test_every_config_key_is_documented_with_its_default(schema_file: Path, config_page: str) -> None:
    require_table(config_page, "Keys", wanted_keys(schema_file), "config/schema.yaml")


def test_every_reject_reason_is_documented(config_page: str) -> None:
    wanted = [f"| `{code}` | {cell(meaning)} |" for code, meaning in REASONS.items()]
    require_table(config_page, "Why a row is rejected", wanted, "REASONS in hidden_states/conversations/reasons.py")


def test_a_stale_default_and_a_missing_key_are_found(schema_file: Path, config_page: str) -> None:
    wanted = wanted_keys(schema_file)
    first = wanted[0]
    for damaged in (config_page.replace(first + "\n", ""), config_page.replace(first, first.replace("demo", "other"))):
        with pytest.raises(AssertionError, match="Add these lines"):
            require_table(damaged, "Keys", wanted, "config/schema.yaml")


def test_the_example_is_a_valid_configuration(schema_file: Path, config_page: str) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", config_page, re.DOTALL)
    check(yaml.safe_load(example), schema_file, own=True)


def test_the_readme_tells_of_every_verb(repository: Path) -> None:
    page = (repository / "README.md").read_text(encoding="utf-8")
    unknown = set(re.findall(r"`?hidden-states ([a-z][a-z-]*)", page)) - set(VERBS)
    assert not unknown, f"README.md names verbs that hidden_states.cli.VERBS lacks: {sorted(unknown)}; correct them."
    missing = [verb for verb in VERBS if f"hidden-states {verb}" not in page]
    assert not missing or "hidden-states <verb> --help" in page, (
        f"README.md names neither the verbs {missing} nor `hidden-states <verb> --help`; add one of the two."
    )


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(repository: Path, page: str) -> None:
    file = repository / page
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", file.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (file.parent / target).exists()]
    assert not broken, f"{page} links to files that do not exist: {broken}; correct the links."
