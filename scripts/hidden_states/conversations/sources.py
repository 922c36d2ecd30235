"""Which inputs ``conversations.files`` means: files, patterns, folders, and Hugging Face data sets.

Standard library only: the Snakefile asks for the files to watch at every start.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hidden_states.errors import UserError

KEY = "config key conversations.files"
HUB = "hf:"
SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
PACKED = (".gz", ".zst")
SAVED_MARKS = ("state.json", "dataset_dict.json")
"""Either is in a folder that ``save_to_disk`` of the datasets package made."""

ABOUT_DATA = (*SAVED_MARKS, "dataset_info.json", "dataset_infos.json")
"""Files that describe data sets; in a folder they are not taken for conversations."""


@dataclass(frozen=True)
class Source:
    """One input: the file or folder at ``name``, or the data set that ``name`` (hf:name[:subset[:split]]) asks for.

    ``files``: the local files it consists of; none for a data set that comes from elsewhere.
    """

    name: str
    files: tuple[Path, ...]
    is_dataset: bool = False

    @property
    def dataset(self) -> tuple[str, str | None, str | None]:
        """Name or folder, subset and split of a data set; None where the setting names none."""
        if not self.name.startswith(HUB):
            return self.name, None, None
        name, *rest = self.name.removeprefix(HUB).split(":", 2)
        subset, split = ([part or None for part in rest] + [None, None])[:2]
        return name, subset, split


def find_sources(entries: Iterable[str]) -> list[Source]:
    """The inputs in the order of the setting, those of a pattern or folder by name; one that is named twice is read
    once.

    Raises UserError for a file that does not exist, a folder without conversations, a pattern without a match, a name
    that is not UTF-8.
    """
    sources: dict[str, Source] = {}
    for entry in entries:
        found = _find(entry)
        if not found:
            raise UserError(f"{KEY}: {_nothing(entry)}.")
        for source in found:
            if (shown := source.name.encode("utf-8", "backslashreplace").decode()) != source.name:
                raise UserError(f"{KEY}: the name of {shown} is not UTF-8, as the token files need it; rename it.")
        sources.update((source.name, source) for source in found if source.name not in sources)
    return list(sources.values())


def watched_files(entries: Iterable[str]) -> list[str]:
    """Every local file of the inputs there are; what is missing is passed over."""
    return list(dict.fromkeys(str(file) for entry in entries for source in _find(entry) for file in source.files))


def absolute_entry(entry: str, folder: Path) -> str:
    """An entry of the setting with its path, if it is one, looked up in ``folder``.

    The name of a data set is a path when it looks like one, or when there is such a folder.
    """
    if not entry.startswith(HUB):
        return os.path.normpath(folder / Path(entry).expanduser())
    name, *rest = entry.removeprefix(HUB).split(":", 1)
    local = folder / Path(name).expanduser()
    if name.startswith((".", "~", "/")) or (name and local.is_dir()):
        name = os.path.normpath(local)
    return HUB + ":".join([name, *rest])


def _find(entry: str) -> list[Source]:
    if entry.startswith(HUB):
        folder = Path(Source(entry, ()).dataset[0])
        return [Source(entry, _all_files(folder) if folder.is_absolute() else (), is_dataset=True)]
    if os.path.exists(entry):
        return list(_at(Path(entry)))
    return [source for match in sorted(glob.glob(entry, recursive=True)) for source in _at(Path(match))]


def _at(path: Path) -> Iterator[Source]:
    """The file at ``path``, or all there is in the folder."""
    if not path.is_dir():
        yield Source(str(path), (path,))
    elif _is_saved(path):
        yield Source(str(path), _all_files(path), is_dataset=True)
    else:
        yield from _in_folder(path, (path.resolve(),))


def _in_folder(folder: Path, above: tuple[Path, ...]) -> Iterator[Source]:
    """``above``: the real paths on the way here, so that a link to one of them is not followed for ever."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if _is_saved(path):
                yield Source(str(path), _all_files(path), is_dataset=True)
            elif (real := path.resolve()) not in above:
                yield from _in_folder(path, (*above, real))
        elif path.name not in ABOUT_DATA and _is_known(path):
            yield Source(str(path), (path,))


def _is_known(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in SUFFIXES


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in SAVED_MARKS)


def _all_files(folder: Path) -> tuple[Path, ...]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _nothing(entry: str) -> str:
    if os.path.isdir(entry):
        return (
            f"the folder {entry} holds no file of a known kind ({', '.join(SUFFIXES)}, also with {' or '.join(PACKED)})"
        )
    return f"no file matches {entry}" if glob.has_magic(entry) else f"there is no file {entry}"
