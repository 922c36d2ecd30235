"""The packaged dataset against manifests and store: every link or copy, every generated file, every row."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.packaging.links import OURS, STATES, state_name
from hidden_states.packaging.record import CHECKSUMS, PROVENANCE
from hidden_states.packaging.speculators import FORMAT
from hidden_states.packaging.survey import StateRow, Survey, state_rows, survey_rows
from hidden_states.progress import Progress
from hidden_states.store.checksums import StateFileError, check_state_file, file_checksum
from hidden_states.verification.findings import Findings
from hidden_states.verification.pool import parallel


def check_package(results: Results, num_chunks: int, copy: bool, manifests_good: bool, findings: Findings) -> None:
    """Check ``dataset/speculators``. Without good manifests nobody knows its rows: then only the files that it
    recorded itself are checked. ``copy``: the states are copies, which are read in full, and no links."""
    folder = results.dataset(FORMAT)
    if not folder.is_dir():
        findings.add("datasets not packaged yet", folder, "there is no dataset")
        return
    shards = _check_recorded(results, folder, findings)
    if not manifests_good:
        return
    try:
        survey = survey_rows(results, num_chunks)
    except UserError as error:
        findings.add("manifests that do not go together", folder, error)
        return
    _check_provenance(results, folder, survey, findings)
    _check_states(results, folder, survey, copy, findings)
    if shards is not None:
        _check_table(results, folder, shards, survey, findings)


def _check_recorded(results: Results, folder: Path, findings: Findings) -> list[str] | None:
    """Files against ``checksums.json``; return the names of the shards when all of them are in order."""
    checksums = folder / CHECKSUMS
    try:
        recorded = {
            name: (entry["bytes"], entry["checksum"]) for name, entry in json.loads(checksums.read_bytes()).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _report(results, checksums, f"cannot be read ({error})", findings)
        if not (folder / PROVENANCE).is_file():
            _report(results, folder / PROVENANCE, "missing: the dataset is not finished", findings)
        return None
    expected = {PROVENANCE, "dataset_info.json", "state.json", "README.md"} - recorded.keys()
    recorded |= dict.fromkeys(expected, (None, None))
    good = True
    for (name, _), problem in parallel(
        lambda item: _file_problem(folder / item[0], *item[1]), sorted(recorded.items())
    ):
        if problem is not None:
            _report(results, folder / name, problem, findings)
            good = good and not name.endswith(".arrow")
    shards = sorted(name for name in recorded if name.endswith(".arrow"))
    for path in sorted(folder.glob("data-*.arrow")):
        if path.name not in shards:
            _report(results, path, "it is no part of the dataset", findings)
    return shards if good else None


def _file_problem(path: Path, size: int | None, checksum: str | None) -> str | None:
    try:
        found = path.stat().st_size
        if size is None:
            return f"{CHECKSUMS} does not list it"
        if found != size:
            return f"{found:,} bytes instead of {size:,}"
        return None if file_checksum(path) == checksum else "changed since it was written"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _check_provenance(results: Results, folder: Path, survey: Survey, findings: Findings) -> None:
    path = folder / PROVENANCE
    try:
        content = json.loads(path.read_bytes())
        found = (content["fingerprint"], content["content"], content["counts"]["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # reported as a changed or missing file
    if found != (survey.fingerprint, survey.content, survey.rows):
        what = "it is about other states than the manifests name; the dataset has to be packaged again"
        _report(results, path, what, findings)


def _check_states(results: Results, folder: Path, survey: Survey, copy: bool, findings: Findings) -> None:
    """Row by row; the states of damaged keys are left to their chunks."""
    progress = Progress("dataset", survey.rows, unit="rows")
    rows = (row for row in state_rows(results, survey) if row.key not in findings.keys)
    device = os.stat(results.states).st_dev
    for row, problem in parallel(lambda row: _state_problem(folder, row, device, copy), rows):
        if problem is not None:
            _report(results, folder / STATES / state_name(row.row), problem, findings)
        progress.add(num_bytes=row.bytes if copy else 0)
    progress.finish()
    strangers = 0
    for entry in os.scandir(folder / STATES) if (folder / STATES).is_dir() else ():
        match = OURS.fullmatch(entry.name)
        if match and not (match[1] and entry.name == state_name(int(match[1])) and int(match[1]) < survey.rows):
            _report(results, Path(entry.path), "no row of the dataset belongs to it", findings)
        strangers += not match
    if strangers:
        findings.notes.append(f"{strangers} files in {folder / STATES} are not from this workflow; they stay")


def _state_problem(folder: Path, row: StateRow, device: int, copy: bool) -> str | None:
    path = f"{folder}/{STATES}/{state_name(row.row)}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return "missing"
    linked = (status.st_ino, status.st_dev) == (int(row.published.split(":")[0]), device)
    if not copy:
        return None if linked else f"it is not the state {row.key} of its row"
    if linked:
        return "it is a link to the store; packaging.link: copy asks for a copy"
    try:
        header = check_state_file(Path(path), None).header
    except StateFileError as error:
        return str(error)
    return None if (header.key, header.checksum) == (row.key, row.checksum) else f"it is not the state {row.key}"


def _check_table(results: Results, folder: Path, shards: list[str], survey: Survey, findings: Findings) -> None:
    """Key and number of tokens of every row of the arrow files against the manifests."""
    states = state_rows(results, survey)
    for name in shards:
        try:
            for key, num_tokens in _table_rows(folder / name):
                row = next(states, None)
                if row is None or (row.key, row.num_tokens) != (key, num_tokens):
                    place = "beyond the last" if row is None else f"{row.row}, which is {row.key}"
                    _report(results, folder / name, f"it has key {key} in row {place}", findings)
                    return
        except (pyarrow.ArrowException, OSError, KeyError) as error:
            _report(results, folder / name, f"cannot be read ({error})", findings)
            return
    if next(states, None) is not None:
        _report(results, folder / PROVENANCE, "the table has fewer rows than the manifests", findings)


def _table_rows(path: Path) -> Iterator[tuple[str, int]]:
    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
        for batch in reader:
            yield from zip(batch.column("key").to_pylist(), batch.column("seq_len").to_pylist(), strict=True)


def _report(results: Results, path: Path, problem: Any, findings: Findings) -> None:
    findings.dataset_file(str(path.relative_to(results.root)), path, problem)
