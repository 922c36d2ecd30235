"""Data sets of the datasets package: folders that ``save_to_disk`` made, and what ``load_dataset`` finds by name.

They are memory-mapped, never held.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow

from hidden_states.conversations.sources import HUB, KEY, Source
from hidden_states.conversations.tables import BATCH_ROWS, known_columns
from hidden_states.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)

DEFAULT_SPLIT = "train"


def open_dataset(source: Source) -> "Dataset":
    """The split that ``source`` names; without a name, ``train`` or the only one.

    Raises UserError, in the package's own words, for what cannot be had, and for several splits none of which is train.
    """
    import datasets

    datasets.disable_progress_bars()
    name, subset, split = source.dataset
    folder = Path(name)
    try:
        if folder.is_dir() and any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(name)
            if split and isinstance(loaded, datasets.DatasetDict):
                loaded = loaded[split]
        else:
            loaded = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the package and those below it raise whatever they like
        raise UserError(_explain(source, error)) from error
    return _one_split(source, loaded) if isinstance(loaded, dict) else loaded


def dataset_batches(dataset: "Dataset") -> Iterator[pyarrow.Table]:
    """The rows as they are stored: no image or sound is decoded."""
    selected = dataset.select_columns(known_columns(dataset.column_names))
    yield from selected.with_format("arrow").iter(BATCH_ROWS)


def _one_split(source: Source, splits: "DatasetDict") -> "Dataset":
    names = list(splits)
    if DEFAULT_SPLIT not in names and len(names) > 1:
        how = f"{HUB}{source.dataset[0]}:{source.dataset[1] or ''}:{names[0]}"
        raise UserError(f"{KEY}: {source.name} has the splits {', '.join(names)}; name one of them, such as {how}.")
    chosen = DEFAULT_SPLIT if DEFAULT_SPLIT in names else names[0]
    if len(names) > 1:
        log.info("%s: the split %s is read; there are also %s", source.name, chosen, [n for n in names if n != chosen])
    return splits[chosen]


def _explain(source: Source, error: Exception) -> str:
    """What went wrong on one line; a failed conversion has its reason in the error below it."""
    below: Any = error.__cause__ if type(error).__name__ == "DatasetGenerationError" and error.__cause__ else error
    words = " ".join(f"{type(below).__name__}: {below}".split())[:500]
    return (
        f"{KEY}: the data set {source.name} cannot be loaded: {words}. It must be {HUB}name[:subset[:split]], the name "
        "that of a data set of the Hugging Face hub or of a folder; a JSON or parquet file is named by its path alone."
    )
