"""The prompts of the self-check: taken from the corpus, the same ones every time."""

from dataclasses import dataclass

import numpy

from hidden_states.errors import UserError
from hidden_states.layout import Results, chunk_name
from hidden_states.store.tokens import iterate_samples, read_tokens

SCANNED_CHUNKS = 3
"""Chunks whose samples the short prompts are taken from; all chunks are looked at for the longest one."""
MAX_OVER_CHUNK = 16384
"""Prefill chunks longer than this are not exceeded by a prompt put together for it."""


@dataclass(frozen=True)
class Prompts:
    """Token ids, int64 [num_tokens] each. ``alone`` is sent by itself, ``together`` all at once."""

    alone: numpy.ndarray
    together: list[numpy.ndarray]


def choose_prompts(results: Results, num_chunks: int, count: int, prefill_chunk: int, limit: int) -> Prompts:
    """``count`` prompts: one alone; then, at once, a single token, two with a common beginning, one longer than
    ``prefill_chunk``, the longest sample of the corpus, and samples to make up the number.

    ``limit``: prompts must be shorter. Raises UserError when the corpus is empty or its longest sample too long.
    """
    chunks = [chunk_name(index) for index in range(num_chunks)]
    longest, samples = _longest(results, chunks), _samples(results, chunks, count)
    if longest is None:
        raise UserError(
            f"no sample was accepted, so there is nothing to extract; see {results.rejected} for the reasons."
        )
    if longest.size >= limit:
        raise UserError(
            f"the longest sample has {longest.size:,} tokens, but the server takes fewer than {limit:,}. Lower "
            f"conversations.max_tokens to {limit - 1}, or raise context_length or max_total_tokens in server.arguments."
        )
    samples = samples or [longest]  # the chunks that were scanned may have none
    first, last = samples[0], samples[-1]
    half = first[: max(1, first.size // 2)]
    together = [
        first[:1],
        numpy.concatenate([half, first[half.size :]]),
        numpy.concatenate([half, last])[: limit - 1],
        _over_chunk(samples, min(prefill_chunk, MAX_OVER_CHUNK), limit),
        longest,
    ]
    together += [samples[index % len(samples)] for index in range(1, count - len(together))]
    return Prompts(alone=first, together=together)


def _over_chunk(samples: list[numpy.ndarray], prefill_chunk: int, limit: int) -> numpy.ndarray:
    """Samples one after another until they are a little longer than a prefill chunk."""
    wanted = min(prefill_chunk + prefill_chunk // 3 + 1, limit - 1)
    parts, size, index = [], 0, 0
    while size < wanted:
        parts.append(samples[index % len(samples)])
        size += parts[-1].size
        index += 1
    return numpy.concatenate(parts)[:wanted]


def _samples(results: Results, chunks: list[str], count: int) -> list[numpy.ndarray]:
    samples: list[numpy.ndarray] = []
    for chunk in chunks[:SCANNED_CHUNKS]:
        for sample in iterate_samples(results.tokens(chunk)):
            samples.append(sample.token_ids)
            if len(samples) >= count:
                return samples
    return samples


def _longest(results: Results, chunks: list[str]) -> numpy.ndarray | None:
    """The first of the longest samples."""
    best, where = 0, None
    for chunk in chunks:
        lengths = read_tokens(results.tokens(chunk), ["n_tokens"]).column("n_tokens").to_numpy()
        if lengths.size and lengths.max() > best:
            best, where = int(lengths.max()), (chunk, int(lengths.argmax()))
    if where is None:
        return None
    for row, sample in enumerate(iterate_samples(results.tokens(where[0]))):
        if row == where[1]:
            return sample.token_ids
    raise AssertionError("bug: a row that was counted is not there")
