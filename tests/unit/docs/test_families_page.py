"""docs/families.md says what docs/families.json holds, of every family; only words of SGLang or the plug-in refuse."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import families
from helpers.family_models import FAMILIES


@pytest.fixture
def measured(repository: Path) -> dict:
    return json.loads((repository / "docs" / "families.json").read_text())


def test_the_page_is_what_the_command_makes_of_the_figures(
    repository: Path, measured: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    from families.page import render

    assert (repository / "docs" / "families.md").read_text() == render(measured), "make families writes it"


def test_every_family_was_measured_with_default_and_explicit_layers_or_says_why_not(measured: dict) -> None:
    assert list(measured["families"]) == list(FAMILIES)
    for family, rows in measured["families"].items():
        asked = {(tuple(row["layers"]), row["final"]) for row in rows}
        assert len(asked) == 2, family
        assert all(row.get("words") or row["read_back"] for row in rows), family


def failing_server(log: str) -> Any:
    """In place of ``capture_server``: one that leaves this log and does not get healthy."""

    @contextmanager
    def start(served: Path, work: Path, *arguments: Any, **settings: Any) -> Iterator[None]:
        work.mkdir()
        (work / "server.log").write_text(log)
        raise AssertionError("the server did not get healthy")
        yield

    return start


def test_a_server_that_ended_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    log = "starting\nScheduler hit an exception: Traceback (most recent call last):\n"
    log += '  File "norm.py", line 7, in norm\n    assert x.is_cuda\n           ^^^^^^^^^\nAssertionError\n\nSIGQUIT\n'
    log += "Traceback (most recent call last):\nConnectionError: what came of it\n"
    monkeypatch.setattr(families, "capture_server", failing_server(log))
    found = families.measure("llama", (2,), "pre_norm", tmp_path)
    assert found == families.Refused("llama", [2], "pre_norm", "AssertionError (assert x.is_cuda)")


def test_a_slow_server_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    monkeypatch.setattr(families, "capture_server", failing_server("Load weight begin.\n"))
    with pytest.raises(AssertionError, match="did not get healthy"):
        families.measure("llama", (2,), "pre_norm", tmp_path)
