"""A sample as text, cut where its loss mask changes: for the terminal, or for a page."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy

from hidden_states.conversations.batches import Sample

Decode = Callable[[Sequence[int]], str]


def mask_segments(sample: Sample, decode: Decode) -> list[tuple[str, bool]]:
    """(text, has_loss) of each run of tokens with equal mask, in order; joined, the texts are the sample's.

    ``decode``: ids → text, control tokens included. A run's text is what it adds to that of the run before: on their
    own, some tokens lose the space that they begin with.
    """
    ids, mask = sample.input_ids.tolist(), sample.loss_mask
    edges = [0, *(numpy.flatnonzero(numpy.diff(mask)) + 1).tolist(), len(ids)]
    found, previous = [], 0
    for begin, end in pairwise(edges):
        before, text = decode(ids[previous:begin]), decode(ids[previous:end])
        own = text[len(before) :] if text.startswith(before) else decode(ids[begin:end])
        found.append((own, bool(mask[begin])))
        previous = begin
    return found
