"""What lies in some folders: finished runs, recorded scores, and everything that is neither, with the reason.

Nothing is changed and nothing is fatal: a folder that is missing, partial, damaged or not ours is a `Problem`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ..data.dense import DENSE
from ..engine import Run
from ..engine.config import parse
from ..engine.store import CHECKPOINT, DESCRIPTION, HISTORY, PROGRESS, RESULT, read_circumstances, read_folder
from ..studies import STUDIES, Cell, Study
from ..studies.dense import on_scenes
from .recorded_scores import ScoresError, read_scores, told_by_epochs, written_form
from .results import COLUMNS, collect

REPORT = "report"  # where `reproduce` writes its own tables: no runs


@dataclass(frozen=True)
class Problem:
    """Something that could not be used."""

    path: str
    kind: str  # missing, partial, damaged, foreign
    reason: str


@dataclass(frozen=True)
class Found:
    """A finished run."""

    run: Run
    folder: Path
    result: dict[str, Any]

    @cached_property
    def circumstances(self) -> dict[str, Any]:
        """When, where and with what it was made; empty where that was not noted."""
        return read_circumstances(self.folder)

    def picture(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.is_file() else None


@dataclass
class Gathered:
    """All that was found; finished runs can be looked up as in a store."""

    places: list[str] = field(default_factory=list)
    runs: dict[str, Found] = field(default_factory=dict)
    recorded: dict[Path, dict[str, pd.DataFrame]] = field(default_factory=dict)  # by folder and study
    problems: list[Problem] = field(default_factory=list)
    ours: dict[Path, bool] = field(default_factory=dict)
    """Folders, and whether anything of ours was in them: one may be named twice, or linked to from within itself."""

    def result(self, run: Run) -> dict[str, Any] | None:
        found = self.runs.get(run.key)
        return None if found is None else found.result

    def history(self, run: Run) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.runs[run.key].folder / HISTORY).read_text())
        return rows

    def note(self, path: Path, kind: str, reason: str) -> None:
        self.problems.append(Problem(str(path), kind, reason))


def gather(places: Iterable[Path]) -> Gathered:
    """Looks through folders of runs, single run folders, folders of recorded results and their tables of scores."""
    gathered = Gathered()
    for place in places:
        gathered.places.append(str(place))
        try:
            if not place.exists():
                gathered.note(place, "missing", "there is no such folder")
            elif place.is_file():
                _recorded(gathered, [place], place.resolve().parent)
            else:
                _folder(gathered, place, top=True)
        except OSError as error:  # a name that no file system takes
            gathered.note(place, "missing", str(error.strerror))
    return gathered


def _folder(gathered: Gathered, folder: Path, *, top: bool = False) -> bool:
    """Whether anything of ours was in it."""
    place = folder.resolve()
    if place not in gathered.ours:
        gathered.ours[place] = True  # for what links back to it
        try:
            gathered.ours[place] = _looked_through(gathered, folder, top)
        except OSError as error:
            gathered.note(folder, "damaged", f"cannot be read: {error.strerror}")
    return gathered.ours[place]


def _looked_through(gathered: Gathered, folder: Path, top: bool) -> bool:
    if (folder / DESCRIPTION).is_file() or (folder / RESULT).is_file():
        _run(gathered, folder)
        return True
    if (folder / CHECKPOINT).is_file() or (folder / PROGRESS).is_file():
        gathered.note(folder, "partial", f"still being trained, or stopped: {_progress(folder)}")
        return True
    tables = sorted((folder / "runs").glob("*.csv"))
    if not any(table.stem in STUDIES for table in tables):
        tables = []  # a folder called "runs", and not what a book writes
    if tables:
        _recorded(gathered, tables, folder)
    skipped = {REPORT} | ({"runs", "tables", "figures"} if tables else set())
    inner = [c for c in sorted(folder.iterdir()) if c.is_dir() and c.name not in skipped and c.name[0] != "."]
    strangers = [child for child in inner if not _folder(gathered, child)]
    ours = bool(tables) or len(strangers) < len(inner)
    if ours:
        for child in strangers:
            gathered.note(child, "foreign", "no run of Counterpoise and no recorded scores")
    elif top:
        gathered.note(folder, "foreign", "no run of Counterpoise and no recorded scores (runs/*.csv) in it")
    return ours


def _progress(folder: Path) -> str:
    try:
        return f"{json.loads((folder / PROGRESS).read_text())['epoch']} epochs so far"
    except (OSError, ValueError, KeyError, TypeError):
        return "how far it came is not known"


def _run(gathered: Gathered, folder: Path) -> None:
    if not (folder / RESULT).is_file():
        gathered.note(folder, "partial", f"has no {RESULT}: the run did not end")
        return
    try:
        text, result = read_folder(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        gathered.note(folder, "damaged", _words(error))
        return
    try:
        run = parse(text)
    except ValueError as error:
        gathered.note(folder, "foreign", str(error))
        return
    if run.key in gathered.runs:
        return  # the same run in two places
    if run.study not in STUDIES:
        gathered.note(folder, "foreign", f"belongs to the study {run.study!r}, which is not known here")
        return
    gathered.runs[run.key] = Found(run, folder, result)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, KeyError | TypeError) else str(error)


def _recorded(gathered: Gathered, tables: Iterable[Path], folder: Path) -> None:
    """Scores of runs as a book writes them, a file for each study."""
    for path in tables:
        study = STUDIES.get(path.stem)
        if study is None:
            gathered.note(path, "foreign", f"{path.stem!r} is no study: expected scores named after one")
            continue
        try:
            gathered.recorded.setdefault(folder, {})[study.name] = read_scores(path, study)
        except ScoresError as error:
            gathered.note(path, error.kind, str(error))


@dataclass(frozen=True)
class Edition:
    """Studies whose runs were made alike: on one device, in full or smaller, or read from recorded scores."""

    studies: tuple[Study, ...]
    how: str  # "" for the full form
    device: str = ""
    epochs: int | None = None
    recorded: Mapping[str, pd.DataFrame] | None = None
    cells: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)  # of each study, those that were run
    left: Mapping[str, int] = field(default_factory=dict)  # of each study, how many usual ones were not

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.run.seed for cells in self.cells.values() for cell in cells})


def editions(gathered: Gathered) -> list[Edition]:
    """Every run at its place in a study, in the order of the studies; runs that have no place become problems."""
    by_study: dict[str, dict[str, Found]] = {}
    for key, found in gathered.runs.items():
        by_study.setdefault(found.run.study, {})[key] = found
    groups: dict[tuple[str, str, int | None], list[tuple[Study, tuple[Cell, ...], int]]] = {}
    for name, study in STUDIES.items():
        left = by_study.get(name, {})
        for epochs in (None, *sorted({found.run.schedule.epochs for found in left.values()})):
            for form in _forms(study):
                for device in sorted({found.run.device for found in left.values()}):
                    left = _placed(groups, left, form.trained_for(epochs), device, epochs)
        for found in left.values():
            gathered.note(found.folder, "foreign", f"{found.run} is not in the grid of {name} as it is now")
            del gathered.runs[found.run.key]
    made = [
        Edition(
            tuple(study for study, _, _ in group),
            ", ".join(filter(None, (form, device if device != "cpu" else ""))),
            device,
            epochs,
            cells={study.name: cells for study, cells, _ in group},
            left={study.name: count for study, _, count in group},
        )
        for (form, device, epochs), group in groups.items()
    ]
    return made + _written(gathered, made)


def _forms(study: Study) -> Iterator[Study]:
    """A study in full, and in the smaller forms that it can be run in."""
    yield study
    if study.quick:
        yield study.smaller()
    if study.problem in DENSE:
        yield on_scenes(study)
        yield on_scenes(study, small=True)


def _placed(
    groups: dict[tuple[str, str, int | None], list[tuple[Study, tuple[Cell, ...], int]]],
    left: dict[str, Found],
    study: Study,
    device: str,
    epochs: int | None,
) -> dict[str, Found]:
    """Takes the runs that stand in this form of the study; returns the others."""
    seeds = sorted({found.run.seed for found in left.values()})
    cells = list(study.grid(seeds=seeds, epochs=epochs, device=device)) if seeds else []
    here = tuple(cell for cell in cells if cell.run.key in left)
    if not here:
        return left
    usual = [cell for cell in study.grid(epochs=epochs, device=device) if not cell.condition.asked]
    missing = len({cell.run.key for cell in usual} - left.keys())
    groups.setdefault((study.form, device, epochs), []).append((study, here, missing))
    taken = {cell.run.key for cell in here}
    return {key: found for key, found in left.items() if key not in taken}


def _written(gathered: Gathered, made: list[Edition]) -> list[Edition]:
    """Recorded scores, but for those whose runs are all here."""
    here: dict[str, set[tuple[str, ...]]] = {}
    for edition in made:
        for study in edition.studies:
            frame = collect(study, gathered, seeds=edition.seeds, epochs=edition.epochs, device=edition.device)
            here.setdefault(study.name, set()).update(_scores(study, frame))
    found, called = [], _called(gathered.recorded)
    for folder, frames in gathered.recorded.items():
        forms: dict[str, list[Study]] = {}
        for name, study in STUDIES.items():
            if name not in frames:
                continue
            if set(_scores(study, frames[name])) - here.get(name, set()):
                form = written_form(frames[name]) or told_by_epochs(study, frames[name])
                forms.setdefault(form, []).append(study.unjudged(form) if form else study)
        for form, studies in forms.items():
            how = f"recorded in {called[folder]}{f', {form}' if form else ''}"
            found.append(Edition(tuple(studies), how, recorded={study.name: frames[study.name] for study in studies}))
    return found


def _scores(study: Study, frame: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Each run with its scores as a book writes them: other numbers at the same place are those of another run."""
    relative = ("delta_m", "delta_m_percent")  # to whatever else is in the table
    columns = [name for name in (*COLUMNS, *study.metrics) if name not in relative]
    for method, condition, *numbers in frame[columns].itertuples(index=False, name=None):
        yield method, condition, *("" if pd.isna(number) else f"{number:.9g}" for number in numbers)


def _called(folders: Iterable[Path]) -> dict[Path, str]:
    """Each folder by as many of its last names as tell it from the others."""
    whole, found = {folder: folder.resolve().parts for folder in folders}, {}
    for folder, parts in whole.items():
        count = 1
        while sum(other[-count:] == parts[-count:] for other in whole.values()) > 1 and count < len(parts):
            count += 1
        found[folder] = "/".join(parts[-count:])
    return found


def seeds_of(study: Study, frame: pd.DataFrame) -> list[tuple[int, ...]]:
    """At which seeds a study is reported: the paper's, the ten, and all that are here if they are more."""
    here = {int(seed) for seed in frame["seed"]}
    sets = [study.seeds] if study.brief else [study.seeds, study.ten]
    whole = [s for s in dict.fromkeys(sets) if set(s) <= here]
    if not whole or here - set().union(*whole):
        whole.append(tuple(sorted(here)))
    return whole
