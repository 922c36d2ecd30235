"""Two ways to compute a loss mask, over real conversations with every template: they agree on every token.

Templates of our own, and those of a folder that HIDDEN_STATES_TEMPLATES names.
"""

import os
from pathlib import Path

import pytest
from helpers.mask_table import measure, read_all, real_templates
from helpers.mask_templates import FAMILIES
from hidden_states.conversations.rows import Row

SHARED = Path(os.environ.get("HIDDEN_STATES_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
TEMPLATES = os.environ.get("HIDDEN_STATES_TEMPLATES")
REAL = real_templates(Path(TEMPLATES)) if TEMPLATES else {}
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """A part of the rows; ``python -m masks`` takes all."""
    files = [*sorted(SHARED.glob("conversations/*")), SHARED / "nasty.jsonl", *sorted(SHARED.glob("malformed/*"))]
    return read_all(files)[::11]


@pytest.mark.parametrize("name", [*FAMILIES, *REAL])
def test_both_ways_agree_on_every_token_of_every_accepted_row(rows: list[Row], name: str) -> None:
    line = measure(name, REAL.get(name) or FAMILIES[name], rows)
    assert line.agreement.different == []
    assert line.rows == len(rows) == line.accepted + sum(line.reasons.values())
    assert line.samples >= line.accepted


def test_every_family_accepts_some_rows(rows: list[Row]) -> None:
    reasoning = [row for row in rows if row.source_file.endswith("+reasoning")]
    for name in ("qwen3", "qwen3_thinking", "glm", "gpt_oss", "kimi_k25", "minimax_m2", "deepseek_r1"):
        assert measure(name, FAMILIES[name], reasoning).agreement.answers > 30
