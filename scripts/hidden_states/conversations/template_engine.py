"""Chat templates compiled as transformers compiles them, but for rendering many short ones: half of the time there goes
into finding and passing on what never changes. ``{% generation %}`` can be made visible.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OPEN, CLOSE = "\uf8f0", "\uf8f1"
"""Characters for private use around each marked block."""


@lru_cache(maxsize=16)
def compile_template(source: str, marked: bool = False) -> Callable[[dict[str, Any]], str]:
    """A function from the template's variables to the text. ``marked``: with OPEN and CLOSE around each block of
    ``{% generation %}``. Raises jinja2.TemplateError for a template with wrong syntax; the function raises whatever
    the template does."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Marked if marked else _Unmarked, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    template = environment.from_string(source)
    return partial(_render, template, dict(template.globals))


def _render(template: jinja2.Template, common: dict[str, Any], variables: dict[str, Any]) -> str:
    context = template.new_context(common | variables, shared=True)
    return "".join(template.root_render_func(context))


class _Unmarked(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` gives its content."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_give"), [], [], body).set_lineno(line)

    def _give(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


class _Marked(_Unmarked):
    """… gives its content between OPEN and CLOSE."""

    def _give(self, caller: jinja2.runtime.Macro) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
