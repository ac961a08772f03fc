"""Collect finished runs and recorded scores from folders and archives.

Nothing on disk is changed and nothing is fatal: a missing, partial, damaged or unrecognised source becomes a `Problem`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..engine import Run
from ..engine.archive import READ_ERRORS, SUFFIX, ArchivedRun, RunFolder, read_archive
from ..engine.config import parse_run
from ..engine.store import CHECKPOINT, DESCRIPTION, MEMBERS, PROGRESS, RESULT
from ..engine.trainers import is_function
from ..files import parse_json, read_regular
from ..garbage import paused_garbage_collection
from ..studies import STUDIES
from .recorded_scores import PATTERN, ScoresError, is_score_table, read_scores, study_name

REPORT = "report"
"""The folder that `reproduce` writes its tables to. It holds no runs."""


@dataclass(frozen=True)
class Problem:
    """Something that could not be used."""

    path: str
    kind: str  # missing, partial, damaged, unrecognised
    reason: str


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its description, the folder or archive that holds it, and its content."""

    run: Run
    source: Path
    content: RunFolder | ArchivedRun

    @property
    def result(self) -> dict[str, Any]:
        return self.content.result

    @property
    def circumstances(self) -> dict[str, Any]:
        """When, where and with which versions it was trained; empty if that was not recorded."""
        return self.content.circumstances

    def picture(self, name: str) -> bytes | None:
        return self.content.picture(name)


@dataclass
class CollectedRuns:
    """All runs and scores that were found. Results are looked up by run, as in a store."""

    sources: list[str] = field(default_factory=list)
    runs: dict[Run, FinishedRun] = field(default_factory=dict)
    recorded: dict[Path, dict[str, pd.DataFrame]] = field(default_factory=dict)  # by folder and study
    problems: list[Problem] = field(default_factory=list)
    visited: dict[Path, bool] = field(default_factory=dict)
    """Resolved folders, and whether each holds runs or scores. Prevents reading a folder twice and symlink loops."""

    def result(self, run: Run) -> dict[str, Any] | None:
        finished = self.runs.get(run)
        return None if finished is None else finished.result

    def history(self, run: Run) -> list[dict[str, Any]]:
        return self.runs[run].content.history()

    def add_problem(self, path: Path | str, kind: str, reason: str) -> None:
        self.problems.append(Problem(str(path), kind, reason))


@paused_garbage_collection()
def collect_runs(sources: Iterable[Path]) -> CollectedRuns:
    """Search folders of runs, single run folders, archives, folders of recorded scores and single score tables."""
    collected = CollectedRuns()
    for source in sources:
        collected.sources.append(str(source))
        try:
            if not source.exists():
                collected.add_problem(source, "missing", "no such file or folder")
            elif source.name.endswith(SUFFIX):
                _add_archive(collected, source)
            elif source.is_file():
                _add_score_tables(collected, [source], source.resolve().parent)
            else:
                _add_folder(collected, source, top=True)
        except OSError as error:  # for example a name that is too long for the file system
            collected.add_problem(source, "missing", str(error.strerror))
    return collected


def _add_folder(collected: CollectedRuns, folder: Path, *, top: bool = False) -> bool:
    """Search a folder once. Return whether it holds runs or scores."""
    place = folder.resolve()
    if place not in collected.visited:
        collected.visited[place] = True  # a link back to this folder is not unrecognised
        try:
            collected.visited[place] = _search_folder(collected, folder, top)
        except OSError as error:
            collected.add_problem(folder, "damaged", f"cannot be read: {error.strerror}")
    return collected.visited[place]


def _search_folder(collected: CollectedRuns, folder: Path, top: bool) -> bool:
    if _has(folder, DESCRIPTION) or _has(folder, RESULT):
        _add_run_folder(collected, folder)
        return True
    if any(_has(folder, name) for name in (MEMBERS, CHECKPOINT, PROGRESS)):
        collected.add_problem(folder, "partial", f"training has not finished: {_progress(folder)}")
        return True
    tables = sorted(path for path in (folder / "runs").glob(PATTERN) if is_score_table(path))
    if not any(study_name(table) in STUDIES for table in tables):
        tables = []  # a folder that happens to be called "runs"
    if tables:
        _add_score_tables(collected, tables, folder)
    archives = sorted(folder.glob(f"*{SUFFIX}"))
    for archive in archives:
        _add_archive(collected, archive)
    skipped = {REPORT} | ({"runs", "tables", "figures"} if tables or archives else set())
    skipped |= {archive.name for archive in archives}
    inner = [c for c in sorted(folder.iterdir()) if c.is_dir() and c.name not in skipped and c.name[0] != "."]
    unrecognised = [child for child in inner if not _add_folder(collected, child)]
    holds_runs = bool(tables) or bool(archives) or len(unrecognised) < len(inner)
    if holds_runs:
        for child in unrecognised:
            collected.add_problem(child, "unrecognised", "contains no run of Counterpoise and no recorded scores")
    elif top:
        reason = "contains no run of Counterpoise and no recorded scores (runs/*.csv)"
        collected.add_problem(folder, "unrecognised", reason)
    return holds_runs


def _has(folder: Path, name: str) -> bool:
    """Return whether a name exists in a folder, as a file or as anything else."""
    return os.path.lexists(folder / name)


def _progress(folder: Path) -> str:
    try:
        return f"{int(parse_json(read_regular(folder / PROGRESS))['epoch'])} epochs so far"
    except (OSError, ValueError, KeyError, TypeError):
        return "its progress is unknown"


def _add_run_folder(collected: CollectedRuns, folder: Path) -> None:
    if not _has(folder, RESULT):
        collected.add_problem(folder, "partial", f"has no {RESULT}: the run did not finish")
        return
    try:
        content = RunFolder.read(folder)
    except READ_ERRORS as error:
        collected.add_problem(folder, "damaged", _format_error(error))
        return
    _add_run(collected, folder, content)


def _add_archive(collected: CollectedRuns, archive: Path) -> None:
    if not archive.is_file():
        collected.add_problem(archive, "damaged", "not a regular file")
        return
    place = archive.resolve()
    if place in collected.visited:
        return
    collected.visited[place] = True
    for content in read_archive(archive):
        if isinstance(content, ArchivedRun):
            _add_run(collected, archive, content)
        else:
            collected.add_problem(f"{archive}, line {content.number}", "damaged", content.reason)


def _add_run(collected: CollectedRuns, source: Path, content: RunFolder | ArchivedRun) -> None:
    try:
        run = parse_run(content.description)
    except ValueError as error:
        collected.add_problem(source, "unrecognised", str(error))
        return
    if run in collected.runs:
        return  # the same run in two places
    if run.study not in STUDIES:
        reason = f"belongs to the unknown study {run.study!r}"
        if is_function(run):
            reason = f"belongs to the comparison {run.study!r}: counterpoise compare writes its page"
        collected.add_problem(source, "unrecognised", reason)
        return
    collected.runs[run] = FinishedRun(run, source, content)


def _format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{Path(error.filename).name}: {error.strerror}"
    return f"{type(error).__name__}: {error}" if isinstance(error, KeyError | TypeError) else str(error)


def _add_score_tables(collected: CollectedRuns, tables: Iterable[Path], folder: Path) -> None:
    """Read the scores of runs as a report writes them, one file per study."""
    for path in tables:
        study = STUDIES.get(study_name(path))
        if study is None:
            collected.add_problem(path, "unrecognised", f"{study_name(path)!r} is not a study: name the file after one")
            continue
        try:
            collected.recorded.setdefault(folder, {})[study.name] = read_scores(path, study)
        except ScoresError as error:
            collected.add_problem(path, error.kind, str(error))
