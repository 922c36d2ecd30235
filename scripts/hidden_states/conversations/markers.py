"""Assistant spans of templates that mark them with ``{% generation %}``.

The template is rendered once more with an invisible pair of characters around each marked block. Taken out again, they
must leave the very text of the ordinary rendering; then their places are the spans, wherever in the template the
blocks are (counting rendered characters, as transformers does, goes wrong inside macros).
"""

import re
from typing import Any

from hidden_states.conversations.template_engine import CLOSE, OPEN, compile_template

MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


def has_markers(template: str) -> bool:
    return MARKER.search(template) is not None


def marked_spans(template: str, variables: dict[str, Any], text: str) -> list[Span] | None:
    """Characters [begin, end) of ``text`` inside the blocks that ``template`` marks, in order.

    ``variables``: messages, tools and whatever else the ordinary rendering got. None when the two renderings differ,
    so that the spans are not known.
    """
    try:
        marked = compile_template(template, marked=True)(variables)
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


def one_a_turn(spans: list[Span], turns: int) -> list[Span]:
    """The spans of that many answers, in order; empty where they cannot be told apart. Spans without anything between
    them are one answer's where there are more than answers: some templates mark the end of a text on its own."""
    if len(spans) > turns:
        joined = spans[:1]
        for begin, end in spans[1:]:
            joined[-1:] = [(joined[-1][0], end)] if begin == joined[-1][1] else [joined[-1], (begin, end)]
        spans = joined
    return spans if len(spans) == turns else []
