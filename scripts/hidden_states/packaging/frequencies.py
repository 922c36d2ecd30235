"""How often each token id occurs where the loss counts: ``token_freq.pt``, from which the trainer chooses the draft
vocabulary (``--draft-vocab-size``)."""

import hashlib
import logging
from typing import Any

import numpy as np

from hidden_states.layout import Results
from hidden_states.packaging.record import Record
from hidden_states.packaging.shards import packaged_ids
from hidden_states.packaging.survey import Survey

log = logging.getLogger(__name__)

TOKEN_FREQ = "token_freq.pt"


def write_token_frequencies(
    results: Results,
    survey: Survey,
    token_checksums: dict[str, str],
    embedding_rows: int,
    record: Record,
    name: str = TOKEN_FREQ,
) -> None:
    """Bring the file ``name`` up to date: a ``dict[int, int]`` from token id to its count where ``loss_mask`` is 1.

    ``embedding_rows`` bounds the ids. Warns when the trainer has cached vocabulary mappings made from other counts.
    """
    identity = "|".join(f"{token_checksums[chunk.chunk]}:{chunk.digest}" for chunk in survey.chunks)
    source = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def make(stream: Any) -> None:
        import io

        import torch

        counts = np.zeros(embedding_rows, np.int64)
        for chunk in survey.chunks:
            for ids, mask in packaged_ids(results, chunk.chunk):
                chosen = ids.to_numpy(zero_copy_only=False)[mask.to_numpy(zero_copy_only=False) == 1]
                counts += np.bincount(chosen, minlength=embedding_rows)
        # torch.save seeks, the stream here cannot; the file is as small as the vocabulary.
        buffer = io.BytesIO()
        torch.save({int(token): int(counts[token]) for token in np.flatnonzero(counts)}, buffer)
        stream.write(buffer.getvalue())

    record.write(name, make, source)
    stale = sorted(path.name for path in record.folder.glob("[dt]2[dt]-*.npy"))
    if name in record.changed and stale:
        log.warning(
            "%s changed, but the trainer would still use %s, made from the earlier counts; remove them before "
            "training a new drafter.",
            record.folder / name,
            ", ".join(stale),
        )
