"""List the studies and their runs, with what is finished."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..engine.archive import ArchivedStore
from ..studies import STUDIES, Cell, Study
from ..studies.rates import cells_at_chosen_rates
from ..studies.select import resolve_study, select_runs
from ._checks import check_device


@dataclass(frozen=True)
class StudyStatus:
    """A study and how many of its runs are finished on one device."""

    study: Study
    runs: int
    finished: int


@dataclass(frozen=True)
class RunStatus:
    """A run of a study's grid. The score is None if the run is not finished or has diverged."""

    cell: Cell
    score: float | None


def list_studies(out: Path | str = "runs", *, device: str = "cpu") -> list[StudyStatus]:
    """Return all studies with the number of their runs and of the finished ones.

    Args:
        out: Folder of runs.
        device: Device of the runs.

    Raises:
        UsageError: If the device is unknown.
    """
    store, found = ArchivedStore(out), []
    for study in STUDIES.values():
        cells = select_runs(study, device=check_device(device))
        runs = [cell.run for cell in cells_at_chosen_rates(study, cells, store.result)]
        found.append(StudyStatus(study, len(runs), sum(store.result(run) is not None for run in runs)))
    return found


def list_runs(
    study: str,
    out: Path | str = "runs",
    *,
    seeds: str | Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    methods: Iterable[str] | None = None,
    conditions: Iterable[str] | None = None,
    data: str | None = None,
    quick: bool = False,
) -> list[RunStatus]:
    """Return the runs of one study with their scores.

    Args:
        study: Name of the study.
        out: Folder of runs.
        seeds: Seeds as a list, or as text such as "42-51" or "paper". Default: all seeds of the study.
        epochs: Number of epochs. Default: the study's.
        device: Device of the runs.
        methods: Labels of methods. Default: all.
        conditions: Keys of conditions. Default: all except those that are opt-in.
        data: "scenes" for synthetic rooms instead of NYUv2.
        quick: Whether to list the quick form of the study.

    Returns:
        One entry per run. The score is the macro score, or else the best value of the monitored metric.

    Raises:
        UsageError: If an argument is unknown.
    """
    store, found = ArchivedStore(out), []
    found_study = resolve_study(study, data=data, quick=quick)
    cells = select_runs(
        found_study,
        seeds=seeds,
        epochs=epochs,
        device=check_device(device),
        methods=methods,
        conditions=conditions,
    )
    for cell in cells_at_chosen_rates(found_study, cells, store.result):
        result = store.result(cell.run)
        scores = () if result is None else (result.get("macro"), result["best"]["value"])
        found.append(RunStatus(cell, next((score for score in scores if score is not None), None)))
    return found
