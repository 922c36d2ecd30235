"""The samples of a speculators v1 dataset, ``data_{row}.pt``: a full copy of states, token ids and loss masks.

Only what differs is written. A file is right when it has the time of the state file that it was made from, and its seal
names these states and this loss mask; where only the time differs, it is read in full to find out.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pyarrow.parquet

from hidden_states.errors import UserError
from hidden_states.files import fsync_directory
from hidden_states.layout import Results
from hidden_states.packaging.links import published_state
from hidden_states.packaging.record import Record
from hidden_states.packaging.sample_file import Layout, sample_layout, sample_problem, sample_source, write_sample
from hidden_states.packaging.survey import StateRow, Survey, manifest_batches, state_rows
from hidden_states.pool import parallel
from hidden_states.progress import Progress
from hidden_states.store.checksums import StateFileError
from hidden_states.store.disk_plan import readable
from hidden_states.store.quarantine import quarantine
from hidden_states.store.tokens import check_token_file

log = logging.getLogger(__name__)

OURS = re.compile(r"data_(\d+)\.pt")
LEFTOVER = re.compile(r"\.data_\d+\.pt\.\d+\.tmp")
ROWS_PER_BATCH = 256


@dataclass
class SampleFigures:
    """How many files were written, were right already, and were removed or moved away as no row's."""

    made: int = 0
    kept: int = 0
    removed: int = 0


@dataclass(frozen=True)
class SampleRow:
    """One row: its states, its loss mask as int8 [num_tokens], and its file's layout."""

    state: StateRow
    mask: numpy.ndarray = field(repr=False)
    layout: Layout = field(repr=False)

    @property
    def name(self) -> str:
        return sample_name(self.state.row)

    @property
    def source(self) -> str:
        return sample_source(self.state.checksum, self.mask)


def sample_name(row: int) -> str:
    return f"data_{row}.pt"


def sample_rows(results: Results, survey: Survey) -> Iterator[SampleRow]:
    """Every row in the order of its number; a few loss masks are in memory at a time.

    Raises UserError when a token file is not the one in the summary.
    """
    states = state_rows(results, survey)
    for chunk in survey.chunks:
        check_token_file(results, chunk.chunk)
        succeeded = (
            status == "ok" for batch in manifest_batches(results, chunk.chunk, ["status"]) for status in batch["status"]
        )
        with pyarrow.parquet.ParquetFile(results.tokens(chunk.chunk)) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=["loss_mask"]):
                column = batch.column("loss_mask")
                values, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
                for index in range(batch.num_rows):
                    if not next(succeeded):
                        continue
                    state, mask = next(states), values[offsets[index] : offsets[index + 1]]
                    if len(mask) != state.num_tokens:
                        raise UserError(
                            f"{results.tokens(chunk.chunk)}: the loss_mask of key {state.key} has {len(mask)} entries "
                            f"for {state.num_tokens} tokens; run: snakemake verify, then: snakemake --cores 8 all"
                        )
                    shape = (state.num_tokens, survey.slots, survey.hidden_size, survey.dtype)
                    yield SampleRow(state, mask, sample_layout(*shape))


def write_samples(results: Results, survey: Survey, record: Record, suspect: set[str]) -> SampleFigures:
    """Bring the dataset to one file per row.

    ``suspect`` names files reported as damaged: these are read in full. Raises UserError when a state file is not the
    one its manifest published, or there is no room for the copies.
    """
    figures = SampleFigures(removed=_remove_extra(results, survey.rows, record))
    _require_room(results, survey, record.folder)
    progress = Progress("packaging samples", survey.rows, total_tokens=survey.tokens)

    def bring(row: SampleRow) -> bool:
        return _bring(results, row, record, row.name in suspect)

    for row, is_made in parallel(bring, sample_rows(results, survey)):
        figures.made += is_made
        figures.kept += not is_made
        progress.add(tokens=row.state.num_tokens, num_bytes=row.layout.file_bytes if is_made else 0)
    fsync_directory(record.folder)
    progress.finish()
    return figures


def _bring(results: Results, row: SampleRow, record: Record, is_suspect: bool) -> bool:
    """Write the row's file unless it is right; return whether it was written."""
    state = Path(f"{results.root}/{row.state.file}")
    status = published_state(str(state), row.state)
    target, source = record.folder / row.name, row.source
    times = (status.st_atime_ns, status.st_mtime_ns)
    try:
        is_aged = os.lstat(target).st_mtime_ns != status.st_mtime_ns
    except FileNotFoundError:
        is_aged = True
    if sample_problem(target, row.layout, source, full=is_aged or is_suspect) is None:
        if is_aged:
            os.utime(target, ns=times)
        return False
    temporary = record.folder / f".{row.name}.{os.getpid()}.tmp"
    try:
        write_sample(temporary, row.layout, state, row.state.checksum, row.mask)
        os.chmod(temporary, 0o444)
        os.utime(temporary, ns=times)
        record.begin_change()
        os.replace(temporary, target)
    except StateFileError as error:
        raise UserError(
            f"Row {row.state.row} (key {row.state.key}) cannot be packaged: {error}. The state file or the disk is "
            "damaged. Run: snakemake verify, then: snakemake --cores 8 all"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return True


def foreign_samples(folder: Path, num_rows: int) -> Iterator[Path]:
    """Files below ``folder`` that a trainer would take for rows, and are none: it reads all whose names end in ``pt``.

    Also what a killed run left unfinished, which no trainer reads.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            match = OURS.fullmatch(name)
            is_row = match and place == str(folder) and name == sample_name(int(match[1])) and int(match[1]) < num_rows
            if (name.endswith("pt") and not is_row) or LEFTOVER.fullmatch(name):
                yield Path(place, name)


def _remove_extra(results: Results, num_rows: int, record: Record) -> int:
    """Remove rows beyond the last and leftovers, move to the quarantine what a trainer would take for a row."""
    removed = 0
    for path in sorted(foreign_samples(record.folder, num_rows)):
        record.begin_change()
        if path.parent == record.folder and (OURS.fullmatch(path.name) or LEFTOVER.fullmatch(path.name)):
            path.unlink()
        else:
            quarantine(results, path, "speculators would read it as a row of the dataset")
        removed += 1
    return removed


def _require_room(results: Results, survey: Survey, folder: Path) -> None:
    """Refuse to start what cannot fit; files that are there already count as written."""
    empty = sample_layout(1, survey.slots, survey.hidden_size, survey.dtype)
    per_token = empty.num_slots * empty.slot_row_bytes + 16
    needed = survey.rows * empty.file_bytes + (survey.tokens - survey.rows) * per_token
    with os.scandir(folder) as entries:
        needed -= sum(entry.stat(follow_symlinks=False).st_size for entry in entries if OURS.fullmatch(entry.name))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"packaging.formats: speculators-v1 is a copy that needs {readable(needed)} ({needed:,} bytes) more in "
            f"{folder}, but only {readable(free)} ({free:,} bytes) are free there. Make room, or leave the format out; "
            "what is finished stays."
        )
