"""The packaged datasets against manifests and store: every link or copy, every generated file, every row."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.packaging import speculators_v1
from hidden_states.packaging.draft_vocabulary import FIGURES, mapping_names
from hidden_states.packaging.frequencies import TOKEN_FREQ
from hidden_states.packaging.links import OURS, STATES, state_name
from hidden_states.packaging.record import CHECKSUMS, PROVENANCE
from hidden_states.packaging.sample_file import sample_problem
from hidden_states.packaging.samples import SampleRow, foreign_samples, sample_rows
from hidden_states.packaging.survey import StateRow, Survey, state_rows, survey_rows
from hidden_states.pool import parallel
from hidden_states.progress import Progress
from hidden_states.store.checksums import StateFileError, check_state_file, file_checksum
from hidden_states.verification.findings import Findings


def check_packages(
    settings: dict[str, Any], results: Results, num_chunks: int, manifests_good: bool, findings: Findings
) -> None:
    """Check the dataset of every format in the settings. Without good manifests nobody knows its rows: then only the
    files that it recorded itself are checked."""
    formats = settings["packaging"]["formats"]
    survey, problem = None, None
    if manifests_good:
        try:
            survey = survey_rows(results, num_chunks)
        except UserError as error:
            problem = error
    size = settings["packaging"]["draft_vocabulary"]
    drafted = set() if size is None else {*mapping_names(size), FIGURES}
    for name in formats:
        folder = results.dataset(name)
        if not folder.is_dir():
            findings.add("datasets not packaged yet", folder, "there is no dataset")
        elif name == speculators_v1.FORMAT:
            _check_v1(results, folder, survey, drafted, findings)
        else:
            _check_links(results, folder, survey, settings["packaging"]["link"] == "copy", drafted, findings)
        if problem is not None:
            findings.add("manifests that do not go together", folder, problem)
    for folder in sorted(results.dataset(formats[0]).parent.glob("*/")):
        if folder.name not in formats:
            size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
            findings.notes.append(f"{folder} is not in packaging.formats; it stays as it is, {size:,} bytes")


def _check_links(
    results: Results, folder: Path, survey: Survey | None, copy: bool, drafted: set[str], findings: Findings
) -> None:
    """``dataset/speculators``. ``copy``: the states are copies, which are read in full, and no links. ``drafted``:
    names of the files of the draft vocabulary."""
    recorded = _check_recorded(results, folder, {"dataset_info.json", "state.json", TOKEN_FREQ} | drafted, findings)
    shards = sorted(name for name in recorded or {} if name.endswith(".arrow"))
    if recorded is not None:
        for path in sorted(folder.glob("data-*.arrow")):
            if path.name not in shards:
                _report(results, path, "it is no part of the dataset", findings)
    if survey is None:
        return
    _check_provenance(results, folder, survey, findings)
    _check_states(results, folder, survey, copy, findings)
    if recorded is not None and all(recorded[name] for name in shards):
        _check_table(results, folder, shards, survey, findings)


def _check_v1(results: Results, folder: Path, survey: Survey | None, drafted: set[str], findings: Findings) -> None:
    """``dataset/speculators-v1``: every file is read in full, and must be made of its row's states and loss mask."""
    names = {speculators_v1.DATA_CONFIG, speculators_v1.SAMPLE_LENGTHS, speculators_v1.TOKEN_COUNTS}
    _check_recorded(results, folder, names | drafted, findings)
    if survey is None:
        return
    _check_provenance(results, folder, survey, findings)
    progress = Progress("dataset", survey.rows, unit="rows", total_tokens=survey.tokens)

    def problem_of(row: SampleRow) -> str | None:
        return sample_problem(folder / row.name, row.layout, row.source, full=True)

    rows = (row for row in sample_rows(results, survey) if row.state.key not in findings.keys)
    try:
        for row, problem in parallel(problem_of, rows):
            if problem is not None:
                _report(results, folder / row.name, problem, findings)
            progress.add(tokens=row.state.num_tokens, num_bytes=row.layout.file_bytes)
    except UserError as error:
        findings.add("tokens and manifests that do not go together", folder, error)
    progress.finish()
    for path in sorted(foreign_samples(folder, survey.rows)):
        _report(results, path, "no row of the dataset belongs to it", findings)


def _check_recorded(results: Results, folder: Path, names: set[str], findings: Findings) -> dict[str, bool] | None:
    """Files against ``checksums.json``, which must list ``names`` at least; return which of them are in order, None
    when it cannot be read."""
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
    recorded |= dict.fromkeys(({PROVENANCE, "README.md"} | names) - recorded.keys(), (None, None))
    good = {}
    for (name, _), problem in parallel(
        lambda item: _file_problem(folder / item[0], *item[1]), sorted(recorded.items())
    ):
        if problem is not None:
            _report(results, folder / name, problem, findings)
        good[name] = problem is None
    return good


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
