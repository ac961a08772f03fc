"""Any subset of the runs of any study makes a report."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import fake_run
from rich.console import Console

from counterpoise.lab.engine.archive import ArchivedRun
from counterpoise.lab.report import CollectedRuns, Report
from counterpoise.lab.report.figures.render_plotly import plotly_panels
from counterpoise.lab.report.run_collection import FinishedRun
from counterpoise.lab.report.variants import seeds_to_report
from counterpoise.lab.studies import STUDIES, Cell, Study


def without_numbers(value: Any) -> Any:
    """Replace fractions by None, as in the files of a run that diverged."""
    if isinstance(value, dict):
        return {name: without_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_numbers(part) for part in value]
    return None if isinstance(value, float) else value


def finished(cells: list[Cell], diverged: float = 0.0, rng: random.Random | None = None) -> CollectedRuns:
    """Return the cells as finished runs, a fraction of them without numbers."""
    collected, rng = CollectedRuns(), rng or random.Random(0)
    for cell in cells:
        history, result = fake_run(cell.run, ("a", "b"), epochs=2)
        if rng.random() < diverged:
            history, result = without_numbers(history), without_numbers(result)
        content = ArchivedRun(cell.run.canonical(), result, history)
        collected.runs[cell.run] = FinishedRun(cell.run, Path("runs"), content)
    return collected


def some_cells(study: Study, rng: random.Random) -> list[Cell]:
    """Return a few random cells, in half of the cases of one table only."""
    cells = list(study.grid())
    if rng.random() < 0.5:
        part = rng.choice(list(study.conditions_by_part()))
        cells = [cell for cell in cells if cell.condition.part == part]
    return rng.sample(cells, min(len(cells), rng.choice((1, 2, 3, 8))))


@pytest.mark.parametrize("part", STUDIES["rescaling"].conditions_by_part())
def test_runs_of_a_single_table_make_figures(part: str) -> None:
    study = STUDIES["rescaling"]
    cells = [cell for cell in study.grid(seeds=[42]) if cell.condition.part == part and cell.method != "UWSO"]
    figures = Report([study], finished(cells[-2:]), seeds=[42]).figures(study)
    assert any(name.endswith("-weights") for name in figures)


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_any_subset_of_runs_makes_a_report(study: Study) -> None:
    rng = random.Random(f"{study.name} 0")
    cells = some_cells(study, rng)
    collected = finished(cells, diverged=rng.choice((0.0, 0.4)), rng=rng)
    seeds = sorted({cell.run.seed for cell in cells})
    report = Report([study], collected, seeds=seeds, choose_seed_sets=seeds_to_report)
    report.show(Console(file=io.StringIO(), width=100))
    texts = report.study_texts(study)
    assert texts[f"runs/{study.name}.csv"].count("\n") > 1
    for spec in report.figures(study).values():
        assert plotly_panels(spec)
