"""The states of a speculators dataset: ``hidden_states/hs_{row}.safetensors``, hard links into the store, or copies.

Only what differs is touched. A link is right when it has the inode of the state file; a copy is right when it has
the size and the mtime of the state file (a copy is given them when it is made, after its content was checked). No
states are read to find that out.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hidden_states.errors import UserError
from hidden_states.files import fsync_directory
from hidden_states.layout import Results
from hidden_states.packaging.record import Record
from hidden_states.packaging.survey import StateRow, Survey
from hidden_states.progress import Progress
from hidden_states.store.checksums import StateFileError, check_state_file

log = logging.getLogger(__name__)

STATES = "hidden_states"
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
OURS = re.compile(r"hs_(\d+)\.safetensors|\.hs_\d+\.safetensors\.\d+\.tmp")


@dataclass
class LinkFigures:
    """How many state files were made, were right already, and were removed as beyond the last row."""

    made: int = 0
    kept: int = 0
    removed: int = 0


def state_name(row: int) -> str:
    return f"hs_{row}.safetensors"


def link_states(
    results: Results, survey: Survey, rows: Iterable[StateRow], record: Record, copy: bool, suspect: set[str]
) -> LinkFigures:
    """Bring the folder ``hidden_states`` to one file per row.

    ``suspect`` names files (relative to the dataset) reported as damaged: of these, a copy's content is read and
    checked. Raises UserError when a state file is not the one its manifest published, when the file system has no
    hard links, or when there is no room for the copies.
    """
    folder = record.folder / STATES
    folder.mkdir(parents=True, exist_ok=True)
    figures = LinkFigures(removed=_remove_extra(folder, survey.rows, record))
    if copy:
        _require_room(folder, survey)
    progress = Progress("packaging states", survey.rows)
    for row in rows:
        # Strings, as a path object costs more than the system call it is for.
        source, name = f"{results.root}/{row.file}", state_name(row.row)
        target, temporary = f"{folder}/{name}", f"{folder}/.{name}.{os.getpid()}.tmp"
        status = published_state(source, row)
        if _is_right(target, status, copy) and not (
            copy and f"{STATES}/{name}" in suspect and not _has_content(target, row)
        ):
            figures.kept += 1
            progress.add()
            continue
        record.begin_change()
        try:
            if copy:
                _copy(source, temporary, row, status)
            else:
                _link(source, temporary, survey.bytes)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        figures.made += 1
        progress.add(num_bytes=row.bytes if copy else 0)
    fsync_directory(folder)
    progress.finish()
    return figures


def published_state(source: str, row: StateRow) -> os.stat_result:
    """The state file's status; raises UserError unless it is the very file that the manifest published."""
    try:
        status = os.stat(source)
        found = f"{status.st_ino}:{status.st_mtime_ns}" == row.published and status.st_size == row.bytes
        problem = "is not the file its chunk published"
    except FileNotFoundError:
        found, problem = False, "is missing"
    if not found:
        raise UserError(
            f"The state file {source} {problem} (row {row.row}, key {row.key}). "
            "Run: snakemake verify, which finds all such files, then: snakemake --cores 8 all"
        )
    return status


def _is_right(target: str, source: os.stat_result, copy: bool) -> bool:
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return False
    same_inode = (status.st_ino, status.st_dev) == (source.st_ino, source.st_dev)
    if not copy:
        return same_inode
    return not same_inode and (status.st_size, status.st_mtime_ns) == (source.st_size, source.st_mtime_ns)


def _link(source: str, temporary: str, all_bytes: int) -> None:
    try:
        os.link(source, temporary)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        folder = os.path.dirname(temporary)
        raise UserError(
            f"{folder} cannot hold a hard link to {source} ({error.strerror}). Set packaging.link: copy in "
            f"the configuration to copy the states instead: that needs {all_bytes:,} bytes "
            f"({all_bytes / 1e9:.2f} GB), and {shutil.disk_usage(folder).free:,} are free."
        ) from error


def _copy(source: str, temporary: str, row: StateRow, status: os.stat_result) -> None:
    """Copy, make durable, read back and compare with the manifest; only then may the file get its name."""
    shutil.copyfile(source, temporary)
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not _has_content(temporary, row):
        raise UserError(
            f"A copy of {source} is not what its manifest recorded (key {row.key}): the state file or the disk is "
            "damaged. Run: snakemake verify, then: snakemake --cores 8 all"
        )
    os.chmod(temporary, 0o444)
    os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))


def _has_content(copy: str, row: StateRow) -> bool:
    """Whether ``copy``, read in full, is the state that the manifest recorded."""
    try:
        header = check_state_file(Path(copy), None).header
    except StateFileError as error:
        log.warning("%s: %s", copy, error)
        return False
    return (header.key, header.checksum) == (row.key, row.checksum)


def _remove_extra(folder: Path, num_rows: int, record: Record) -> int:
    """Remove state files beyond the last row and leftovers of a killed run; names that are not ours stay."""
    removed = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            match = OURS.fullmatch(entry.name)
            if match and not (match[1] and entry.name == state_name(int(match[1])) and int(match[1]) < num_rows):
                record.begin_change()
                os.unlink(entry.path)
                removed += 1
    return removed


def _require_room(folder: Path, survey: Survey) -> None:
    """Refuse to start copying what cannot fit; files that are there already count as copied."""
    present = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            present += status.st_size if status.st_nlink == 1 else 0
    needed, free = survey.bytes - present, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"packaging.link: copy needs {needed:,} more bytes in {folder}, but only {free:,} are free there. Free "
            "some space, or use packaging.link: hard, which needs none."
        )
