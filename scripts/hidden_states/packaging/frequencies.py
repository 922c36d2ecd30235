"""How often each token id occurs where the loss counts: ``token_freq.pt``, from which the trainer chooses the draft
vocabulary (``--draft-vocab-size``)."""

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from hidden_states.packaging.inputs import Inputs
from hidden_states.packaging.record import Record
from hidden_states.packaging.shards import packaged_ids

TOKEN_FREQ = "token_freq.pt"


class TokenCounts:
    """The counts of a dataset's rows, taken only when a file has to be made from them.

    ``source`` is a digest of everything that they depend on.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        identity = "|".join(f"{inputs.token_checksums[chunk.chunk]}:{chunk.digest}" for chunk in inputs.survey.chunks)
        self.source = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    @property
    def num_ids(self) -> int:
        """Ids of the model, from 0 on."""
        return self._inputs.summary["embedding_rows"]

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 [num_ids]: how often each id occurs where ``loss_mask`` is 1."""
        counts = np.zeros(self.num_ids, np.int64)
        for chunk in self._inputs.survey.chunks:
            for ids, mask in packaged_ids(self._inputs.results, chunk.chunk):
                chosen = ids.to_numpy(zero_copy_only=False)[mask.to_numpy(zero_copy_only=False) == 1]
                counts += np.bincount(chosen, minlength=self.num_ids)
        return counts


def write_token_frequencies(tokens: TokenCounts, record: Record, name: str = TOKEN_FREQ) -> None:
    """Bring the file ``name`` up to date: a ``dict[int, int]`` from token id to its count, where that is not 0."""

    def make(stream: Any) -> None:
        import io

        import torch

        # torch.save seeks, the stream here cannot; the file is as small as the vocabulary.
        buffer = io.BytesIO()
        torch.save({int(token): int(tokens.counts[token]) for token in np.flatnonzero(tokens.counts)}, buffer)
        stream.write(buffer.getvalue())

    record.write(name, make, tokens.source)
