"""Assistant spans of templates that mark them with ``{% generation %}``.

The template is rendered once more with an invisible pair of characters around each marked block. Taken out again, they
must leave the very text of the ordinary rendering; then their places are the spans, wherever in the template the
blocks are (counting rendered characters, as transformers does, goes wrong inside macros).
"""

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
OPEN, CLOSE = "\uf8f0", "\uf8f1"
"""Characters for private use; a text that has them itself fails the comparison and is rejected."""

Span = tuple[int, int]


def has_markers(template: str) -> bool:
    return MARKER.search(template) is not None


def marked_spans(template: str, variables: dict[str, Any], text: str) -> list[Span] | None:
    """Characters [begin, end) of ``text`` inside the blocks that ``template`` marks, in order.

    ``variables``: messages, tools and whatever else the ordinary rendering got. None when the two renderings differ,
    so that the spans are not known.
    """
    try:
        marked = _compile(template).render(**variables)
    except Exception:  # a template can raise anything
        return None
    if marked.replace(OPEN, "").replace(CLOSE, "") != text or OPEN in text or CLOSE in text:
        return None
    spans, begin, position = [], None, 0
    for piece in re.split(f"([{OPEN}{CLOSE}])", marked):
        if piece == OPEN:
            if begin is not None:
                return None
            begin = position
        elif piece == CLOSE:
            if position > begin:
                spans.append((begin, position))
            begin = None
        else:
            position += len(piece)
    return spans


class _Generation(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` gives its content between OPEN and CLOSE."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

    def _wrap(self, caller: jinja2.runtime.Macro) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    """Compile as transformers does: same environment, filters and functions."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment.from_string(template)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
