"""Group collected runs into report variants: studies whose runs were made in the same way."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ..data.dense import DENSE
from ..engine import Run
from ..studies import STUDIES, Cell, Study
from ..studies.dense import on_synthetic_rooms
from .recorded_scores import form_from_epochs, recorded_form
from .run_collection import CollectedRuns, FinishedRun
from .run_scores import COLUMNS, collect_scores


@dataclass(frozen=True)
class ReportVariant:
    """Studies run on one device, in full or in a smaller form, or read from recorded scores."""

    studies: tuple[Study, ...]
    label: str  # "" for the full form
    device: str = ""
    epochs: int | None = None
    recorded: Mapping[str, pd.DataFrame] | None = None
    cells: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)  # the finished cells of each study
    missing: Mapping[str, int] = field(default_factory=dict)  # how many default cells of each study are not finished

    @property
    def seeds(self) -> list[int]:
        return sorted({cell.run.seed for cells in self.cells.values() for cell in cells})


@dataclass(frozen=True)
class _FinishedStudy:
    """The part of a study, in one form and on one device, that was run."""

    study: Study
    cells: tuple[Cell, ...]
    missing: int


_Groups = dict[tuple[str, str, int | None], list[_FinishedStudy]]
"""By form, device and number of epochs."""


def report_variants(collected: CollectedRuns) -> list[ReportVariant]:
    """Assign every run to a cell of its study, in the order of the studies. Runs without a cell become problems."""
    by_study: dict[str, dict[Run, FinishedRun]] = {}
    for run, finished in collected.runs.items():
        by_study.setdefault(run.study, {})[run] = finished
    groups: _Groups = {}
    for name, study in STUDIES.items():
        remaining = by_study.get(name, {})
        for epochs in (None, *sorted({finished.run.schedule.epochs for finished in remaining.values()})):
            for form in _forms(study):
                for device in sorted({finished.run.device for finished in remaining.values()}):
                    remaining = _assign(groups, remaining, form.with_epochs(epochs), device, epochs)
        for finished in remaining.values():
            reason = f"{finished.run} is not in the grid of {name} as it is now"
            collected.add_problem(finished.source, "unrecognised", reason)
            del collected.runs[finished.run]
    variants = [
        ReportVariant(
            tuple(part.study for part in group),
            ", ".join(filter(None, (form, device if device != "cpu" else ""))),
            device,
            epochs,
            cells={part.study.name: part.cells for part in group},
            missing={part.study.name: part.missing for part in group},
        )
        for (form, device, epochs), group in groups.items()
    ]
    return variants + _recorded_variants(collected, variants)


def _forms(study: Study) -> Iterator[Study]:
    """Yield the study in full and in each smaller form that it can be run in."""
    yield study
    if study.quick:
        yield study.quick_form()
    if study.problem in DENSE:
        yield on_synthetic_rooms(study)
        yield on_synthetic_rooms(study, small=True)


def _assign(
    groups: _Groups, remaining: dict[Run, FinishedRun], study: Study, device: str, epochs: int | None
) -> dict[Run, FinishedRun]:
    """Add the runs that belong to this form of the study to its group. Return the others."""
    seeds = sorted({finished.run.seed for finished in remaining.values()})
    cells = list(study.grid(seeds=seeds, epochs=epochs, device=device)) if seeds else []
    assigned = tuple(cell for cell in cells if cell.run in remaining)
    if not assigned:
        return remaining
    default = [cell for cell in study.grid(epochs=epochs, device=device) if not cell.condition.opt_in]
    missing = len({cell.run for cell in default} - remaining.keys())
    groups.setdefault((study.form, device, epochs), []).append(_FinishedStudy(study, assigned, missing))
    found = {cell.run for cell in assigned}
    return {run: finished for run, finished in remaining.items() if run not in found}


def _recorded_variants(collected: CollectedRuns, variants: list[ReportVariant]) -> list[ReportVariant]:
    """Return the recorded scores, except those whose runs were all collected, too."""
    collected_scores: dict[str, set[tuple[str, ...]]] = {}
    known = {name for frames in collected.recorded.values() for name in frames}
    for variant in variants:
        for study in variant.studies:
            if study.name not in known:
                continue
            frame = collect_scores(study, collected, seeds=variant.seeds, epochs=variant.epochs, device=variant.device)
            collected_scores.setdefault(study.name, set()).update(_printed_scores(study, frame))
    recorded, names = [], _distinct_names(collected.recorded, collected.sources)
    for folder, frames in collected.recorded.items():
        forms: dict[str, list[Study]] = {}
        for name, study in STUDIES.items():
            if name not in frames:
                continue
            if set(_printed_scores(study, frames[name])) - collected_scores.get(name, set()):
                form = recorded_form(frames[name]) or form_from_epochs(study, frames[name])
                forms.setdefault(form, []).append(study.without_paper(form) if form else study)
        for form, studies in forms.items():
            label = f"recorded in {names[folder]}{f', {form}' if form else ''}"
            scores = {study.name: frames[study.name] for study in studies}
            recorded.append(ReportVariant(tuple(studies), label, recorded=scores))
    return recorded


def _printed_scores(study: Study, frame: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield each run with its scores as a report prints them. Two runs of one cell differ in these numbers."""
    relative = ("delta_m", "delta_m_percent")  # these depend on the other runs of the table
    columns = [name for name in (*COLUMNS, *study.metrics) if name not in relative]
    for method, condition, *numbers in frame[columns].itertuples(index=False, name=None):
        yield method, condition, *("" if pd.isna(number) else f"{number:.9g}" for number in numbers)


def _distinct_names(folders: Iterable[Path], sources: Sequence[str]) -> dict[Path, str]:
    """Name each folder by its path in its source, or by more of its last components if others have the same."""
    parts_of = {folder: folder.resolve().parts for folder in folders}
    names = {}
    for folder, parts in parts_of.items():
        inside = [folder.relative_to(source) for source in sources if folder.is_relative_to(source)]
        count = max((len(path.parts) for path in inside), default=1) or 1
        while sum(other[-count:] == parts[-count:] for other in parts_of.values()) > 1 and count < len(parts):
            count += 1
        names[folder] = "/".join(parts[-count:])
    return names


def seeds_to_report(study: Study, frame: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the sets of seeds to report: the paper's, the ten, and all that were run if they are more.

    Further seeds at which only some methods were run, for example in a search, are a set of their own. Seeds at which
    learning rates were chosen are not reported, unless there are no others.
    """
    run = {int(seed) for seed in frame["seed"]}
    run = run - set(study.rate_seeds) or run
    sets = [study.seeds] if study.paper_seeds_only else [study.seeds, study.ten_seeds]
    complete = [seeds for seeds in dict.fromkeys(sets) if set(seeds) <= run]
    further = run - set().union(*complete)
    if further:
        methods = [set(frame["method"][frame["seed"].isin(seeds)]) for seeds in (further, run - further)]
        complete.append(tuple(sorted(run if methods[0] >= methods[1] else further)))
    return complete
