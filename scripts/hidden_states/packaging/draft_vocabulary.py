"""A vocabulary for the drafter, smaller than the model's: the ids that occur most often where the loss counts.

| file | content |
|---|---|
| ``t2d-{size}.npy`` | bool [ids of the model]: whether the drafter has the id |
| ``d2t-{size}.npy`` | int64 [size]: what to add to the drafter's i-th id to get the model's; ascending in i |
| ``draft_vocabulary.json`` | how much of the loss it covers, and what other sizes would |

The names are those under which speculators' trainer keeps its own mappings and finds them again, given
``--draft-vocab-size``; the choice is the trainer's too.
"""

import io
import json
import logging
from typing import Any

import numpy as np

from hidden_states.errors import UserError
from hidden_states.packaging.frequencies import TOKEN_FREQ, TokenCounts
from hidden_states.packaging.record import Record

log = logging.getLogger(__name__)

FIGURES = "draft_vocabulary.json"
LAYOUT_VERSION = "1"
"""Part of the files' source: another layout or choice makes them anew."""
OTHER_SIZES = [factor * 10**power for power in range(2, 6) for factor in (1, 2, 5)] + [32_000]


def mapping_names(size: int) -> tuple[str, str]:
    """From the model's ids to the drafter's, and back."""
    return f"t2d-{size}.npy", f"d2t-{size}.npy"


def choose_ids(counts: np.ndarray, size: int) -> np.ndarray:
    """The ``size`` most frequent ids, ascending; of equally frequent ones the lower. Ids that never occur fill up."""
    by_count = np.argsort(-counts, kind="stable")
    return np.sort(by_count[:size])


def write_draft_vocabulary(tokens: TokenCounts, size: int | None, record: Record) -> dict[str, Any] | None:
    """Bring the three files up to date and return the content of the last; None, and no file, without a ``size``.

    Raises UserError when the model has fewer ids.
    """
    if size is None:
        _warn_of_stale(record)
        return None
    if size > tokens.num_ids:
        raise UserError(
            f"config key packaging.draft_vocabulary = {size}: the model has {tokens.num_ids} ids; choose a smaller "
            "number, or null for a drafter with all of them."
        )
    source = f"{tokens.source}|{LAYOUT_VERSION}|{size}"
    t2d_name, d2t_name = mapping_names(size)

    def t2d() -> bytes:
        has = np.zeros(tokens.num_ids, np.bool_)
        has[choose_ids(tokens.counts, size)] = True
        return _npy(has)

    def d2t() -> bytes:
        return _npy(choose_ids(tokens.counts, size) - np.arange(size, dtype=np.int64))

    def figures() -> bytes:
        return (json.dumps(_figures(tokens.counts, size), indent=2) + "\n").encode()

    for name, make in ((t2d_name, t2d), (d2t_name, d2t), (FIGURES, figures)):
        record.write(name, lambda stream, make=make: stream.write(make()), source)
    found = json.loads((record.folder / FIGURES).read_text(encoding="utf-8"))
    log.info("%s: %s", record.folder / t2d_name, words(found))
    if found["ids_used"] < size:
        log.warning(
            "packaging.draft_vocabulary = %d, but only %d ids occur where the loss counts; the lowest others fill up",
            size,
            found["ids_used"],
        )
    _warn_of_stale(record)
    return found


def words(figures: dict[str, Any]) -> str:
    """For people."""
    share = "–" if figures["share"] is None else f"{figures['share']:.2%}"
    return (
        f"{figures['size']:,} of the model's {figures['model_ids']:,} ids cover {share} of the "
        f"{figures['loss_tokens']:,} tokens with loss"
    )


def _figures(counts: np.ndarray, size: int) -> dict[str, Any]:
    """Shares are of all occurrences; None where there is no token with loss."""
    total = int(counts.sum())
    covered = np.cumsum(np.sort(counts)[::-1])

    def share(ids: int) -> float | None:
        return int(covered[ids - 1]) / total if total else None

    return {
        "size": size,
        "model_ids": len(counts),
        "ids_used": int(np.count_nonzero(counts)),
        "loss_tokens": total,
        "covered": int(covered[size - 1]),
        "share": share(size),
        "share_by_size": {str(ids): share(ids) for ids in sorted({*OTHER_SIZES, size}) if ids <= len(counts)},
    }


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _warn_of_stale(record: Record) -> None:
    """The trainer keeps the mappings of a size and does not look whether the counts have changed since."""
    stale = sorted(path.name for path in record.folder.glob("[dt]2[dt]-*.npy") if not record.knows(path.name))
    if TOKEN_FREQ in record.changed and stale:
        log.warning(
            "%s changed, but the trainer would still use %s, made from the earlier counts; remove them before "
            "training a new drafter.",
            record.folder / TOKEN_FREQ,
            ", ".join(stale),
        )
