"""The choice of learning rates at seeds that the tables do not show."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

from ..engine import Run
from .base import Cell, Study

LookUp = Callable[[Run], dict[str, Any] | None]
"""Returns the result of a run, or None if it is not finished."""


def cells_of_choice(study: Study, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells at the seeds at which rates are chosen; all cells if the study has no such seeds."""
    return [cell for cell in cells if not study.rate_seeds or cell.run.seed in study.rate_seeds]


def cells_at_chosen_rates(study: Study, cells: Sequence[Cell], look_up: LookUp) -> list[Cell]:
    """Return the cells of the choice, and the others at the chosen rate of their condition and method.

    Args:
        study: The study.
        cells: Cells of its grid.
        look_up: Returns the result of a run.
    """
    if not study.rate_seeds:
        return list(cells)
    chosen = chosen_rates(study, cells, look_up)
    return [
        cell for cell in cells if cell.run.seed in study.rate_seeds or cell.run.network_lr == chosen.get(_group(cell))
    ]


def chosen_rates(study: Study, cells: Iterable[Cell], look_up: LookUp) -> dict[tuple[str, str], float]:
    """Return for each condition and method the rate with the best mean score at the seeds of the choice.

    A rate at which more runs have a finite score is better. A method is left out while some of its runs are missing.
    """
    scores: dict[tuple[str, str], dict[float, list[float]]] = {}
    unfinished = set()
    for cell in cells_of_choice(study, cells):
        result = look_up(cell.run)
        if result is None:
            unfinished.add(_group(cell))
            continue
        score = result.get("macro")
        found = scores.setdefault(_group(cell), {}).setdefault(cell.run.network_lr, [])
        if score is not None and isfinite(score):
            found.append(score)
    return {
        group: max(rates, key=lambda rate: (len(rates[rate]), fmean(rates[rate]) if rates[rate] else 0.0))
        for group, rates in scores.items()
        if group not in unfinished
    }


def _group(cell: Cell) -> tuple[str, str]:
    return cell.condition.key, cell.method
