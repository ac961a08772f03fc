"""Recorded scores: known for how they were made, checked cell by cell, and never in the way of the rest of a page."""

import re
import shutil
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
from helpers.fake_runs import fake_run
from typer.testing import CliRunner

from counterpoise.lab.cli.app import app
from counterpoise.lab.engine import Store
from counterpoise.lab.report import Report, write_page
from counterpoise.lab.report.figures.spec import FigureSpec
from counterpoise.lab.report.run_collection import CollectedRuns, collect_runs, report_variants, seeds_to_report
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.dense import on_synthetic_rooms

STRESS, YEAST, NYUV2 = STUDIES["scale-stress"], STUDIES["yeast"], STUDIES["nyuv2"]
TASKS = ("seg", "depth", "normals")
ANCHORS = ("rescaling", "rescaling-recorded-in-rates")


def recorded(folder: Path, study: Study, epochs: int | None = None) -> None:
    """What `reproduce` leaves behind of some runs of a study at two seeds, the runs themselves left out."""
    store = Store(folder / "trained")
    for cell in islice(study.grid(seeds=(42, 43), epochs=epochs), 16):
        history, result = fake_run(cell.run, TASKS)
        store.finish(cell.run, history, result | {"epochs": cell.run.schedule.epochs})
    Report([study], store, seeds=(42, 43), epochs=epochs).write_texts(folder)
    shutil.rmtree(store.root)


@pytest.mark.parametrize(
    ("study", "epochs", "form"),
    [
        (STRESS, None, ""),
        (STRESS, STRESS.schedule.epochs, ""),
        (STRESS, 15, "15 epochs"),
        (STRESS, 25, "25 epochs"),
        (YEAST, 60, "60 epochs"),  # stopping early could have ended there
        (on_synthetic_rooms(NYUV2), None, "on ray-cast scenes"),
        (on_synthetic_rooms(NYUV2, small=True), None, "quick form on small scenes"),
        (on_synthetic_rooms(NYUV2, small=True), 120, "quick form on small scenes, 120 epochs"),
        (STUDIES["tabular"].quick_form(), 100, "quick form, 100 epochs"),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_the_form_in_which_scores_were_made_is_kept_with_them(
    study: Study, epochs: int | None, form: str, tmp_path: Path
) -> None:
    recorded(tmp_path, study, epochs)
    found = collect_runs([tmp_path / "runs" / f"{study.name}.csv"])
    assert not found.problems
    (variant,) = report_variants(found)
    assert variant.label == ", ".join(filter(None, ("recorded in runs", form)))
    (read,) = variant.studies
    full = STUDIES[study.name]
    said = (full.paper, full.claims, full.saturation) if not form else ({}, (), None)
    assert (read.paper, read.claims, read.saturation) == said


def test_more_epochs_than_the_schedule_has_tell_by_themselves(tmp_path: Path) -> None:
    rows = {"method": ["BPGS"], "condition": [STRESS.conditions[0].key], "seed": [42], "lr": [0.1], "epochs": [25]}
    (tmp_path / "runs").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "runs" / "scale-stress.csv", index=False)
    (variant,) = report_variants(collect_runs([tmp_path]))
    assert variant.label.endswith("more epochs")
    assert variant.studies[0].claims == ()


def test_what_no_run_measured_counts_as_not_run_wherever_it_is_read(tmp_path: Path) -> None:
    study, store = STUDIES["nyuv2-overhead"], Store(tmp_path)
    for cell in study.grid():
        history, result = fake_run(cell.run, TASKS, epochs=12)
        result["metrics"] |= {"epoch_seconds": 1.0, "parameters": 100.0}  # a processor does not tell the memory
        store.finish(cell.run, history, result)
    Report([study], store).write_texts(tmp_path / "report")
    for place in (tmp_path / "nyuv2-overhead", tmp_path / "report"):
        found = collect_runs([place])
        (variant,) = report_variants(found)
        report = Report(variant.studies, found, seeds=variant.seeds or None, recorded=variant.recorded, choose_seed_sets=seeds_to_report)
        verdicts = {j.claim.text: j.verdict for j in report.judgements[study.name][0]}
        assert verdicts["BPGS takes less than 1 % more memory than Kendall"] == "not run"
        assert verdicts["BPGS takes less than 1 % more time than Kendall"] == "holds"
        report.write_texts(tmp_path / "again")
        assert "memory" not in (tmp_path / "again" / "tables" / "nyuv2-overhead.md").read_text()


def spoilt(folder: Path, *, row: int = 0, **cells: object) -> CollectedRuns:
    """The scores of a study with other cells in one row, beside those of another study."""
    recorded(folder, STRESS)
    path = folder / "runs" / "scale-stress.csv"
    frame = pd.read_csv(path, dtype="str")
    for column, value in cells.items():
        frame.loc[row, column] = value
    frame.to_csv(path, index=False)
    recorded(folder, STUDIES["normalisation"])
    return collect_runs([folder])


@pytest.mark.parametrize(
    ("cells", "kind", "reason"),
    [
        ({"macro": "0,5"}, "damaged", "macro is 0,5 in line 4, expected a number"),
        ({"macro": "inf"}, "damaged", "macro is inf in line 4, expected a number"),
        ({"epochs": "many"}, "damaged", "epochs is many in line 4, expected a number"),
        ({"lr": None}, "damaged", "lr is empty in line 4, expected a number"),
        ({"seed": "x"}, "damaged", "seed is x in line 4, expected a number"),
        ({"seed": None}, "damaged", "seed is empty in line 4, expected a number"),
        ({"seed": "42.5"}, "damaged", "seed is 42.5 in line 4, expected a whole number from 0 on"),
        ({"seed": "-1"}, "damaged", "seed is -1.0 in line 4, expected a whole number from 0 on"),
        ({"seed": "1" * 30}, "damaged", "expected a whole number from 0 on"),
        ({"method": None}, "foreign", "found methods that the study has not: ['']"),
        ({"condition": "×7"}, "foreign", "found conditions that the study has not: ['×7']"),
        (
            {"condition": "×1", "seed": "42"},
            "damaged",
            "rows of runs that have one already: 1, the first in line 4 (Kendall, ×1, seed 42)",
        ),
        ({"condition": "×1", "seed": "42", "lr": "0.5"}, "damaged", "rows of runs that have one already: 1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_one_bad_cell_costs_its_table_alone(cells: dict[str, object], kind: str, reason: str, tmp_path: Path) -> None:
    found = spoilt(tmp_path, row=2, **cells)
    (problem,) = found.problems
    assert problem.path.endswith("scale-stress.csv")
    assert problem.kind == kind
    assert reason in problem.reason
    (variant,) = report_variants(found)
    assert [study.name for study in variant.studies] == ["normalisation"]


def test_an_empty_cell_of_a_score_is_a_run_without_it(tmp_path: Path) -> None:
    found = spoilt(tmp_path, macro=None)
    assert not found.problems
    frame = found.recorded[tmp_path]["scale-stress"]
    assert frame["macro"].isna().sum() == 1


def test_a_table_without_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "scale-stress.csv").write_text("method,condition,seed,lr,macro\n")
    (problem,) = collect_runs([tmp_path]).problems
    assert (problem.kind, problem.reason) == ("partial", "has no rows")


def test_conditions_that_look_like_numbers_are_names(tmp_path: Path) -> None:
    recorded(tmp_path, STUDIES["nyuv2-first-batch"])
    found = collect_runs([tmp_path])
    (variant,) = report_variants(found)
    report = Report(variant.studies, found, recorded=variant.recorded, choose_seed_sets=seeds_to_report)
    frame = report.frames["nyuv2-first-batch"]
    assert set(frame["condition"]) == {condition.key for condition in STUDIES["nyuv2-first-batch"].conditions}


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recorded(tmp_path / name / "report", STRESS)
    found = collect_runs([tmp_path / "one" / "report", tmp_path / "two" / "report"])
    assert [variant.label for variant in report_variants(found)] == ["recorded in one/report", "recorded in two/report"]


def test_a_folder_is_looked_at_once_however_it_is_reached(tmp_path: Path) -> None:
    recorded(tmp_path, STRESS)
    (tmp_path / "around").symlink_to(tmp_path)
    found = collect_runs([tmp_path, tmp_path / "around", tmp_path.parent / tmp_path.name])
    assert list(found.recorded) == [tmp_path]
    assert not found.problems


def test_other_numbers_at_the_same_place_are_another_run(tmp_path: Path) -> None:
    recorded(tmp_path / "same", STRESS)
    store = Store(tmp_path / "trained")
    for cell in STRESS.grid(seeds=(42, 43)):
        history, result = fake_run(cell.run, TASKS)
        store.finish(cell.run, history, result | {"epochs": cell.run.schedule.epochs})
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    path = tmp_path / "other" / "runs" / "scale-stress.csv"
    frame = pd.read_csv(path)
    frame.loc[0, "macro"] += 0.01
    frame.to_csv(path, index=False)
    places = [store.root, tmp_path / "same", tmp_path / "other"]
    assert [variant.label for variant in report_variants(collect_runs(places))] == ["", "recorded in other"]


def test_recorded_scores_get_no_curves_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", unprinted)
    recorded(tmp_path / "rates", STUDIES["rescaling"])
    store = Store(tmp_path / "trained")
    for cell in STUDIES["rescaling"].grid(seeds=(44,)):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    written = write_page(collect_runs([store.root, tmp_path / "rates"]), tmp_path / "page")
    sections = re.split(r"(?=<section)", written[0].read_text())
    own, scores = (next(s for s in sections if f'id="{name}"' in s) for name in ANCHORS)
    assert "where BPGS stands in its chart" in own
    assert "where BPGS stands in its chart" not in scores


def test_runs_of_a_quick_form_are_known_as_such(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for cell in islice(STUDIES["tabular"].quick_form().grid(), 4):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    assert [variant.label for variant in report_variants(collect_runs([tmp_path]))] == ["quick form"]


def test_a_table_that_is_nobodys_hides_no_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for cell in islice(STRESS.grid(), 4):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    (store.root / "summary.csv").write_text("a,b\n1,2\n")
    assert len(collect_runs([tmp_path]).runs) == 4


@pytest.mark.parametrize("name", ["ö", "\udcff"], ids=["letters", "bytes"])
def test_folders_may_have_any_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", unprinted)
    places = [tmp_path / f"run-{other}" for other in ("ä", name)]
    for place in places:
        recorded(place, STRESS)
    page, *beside = write_page(collect_runs(places), tmp_path / "page")
    assert len(set(beside)) == len(beside)
    anchors = re.findall(r'<section class="study" id="([^"]*)"', page.read_text())
    assert len(set(anchors)) == len(anchors) == 2


def test_what_cannot_be_read_is_a_problem_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "fine", STRESS)
    shut = tmp_path / "shut"
    shut.mkdir()

    def refuse(folder: Path) -> list[Path]:
        if folder == shut:
            raise PermissionError(13, "Permission denied", str(folder))
        return list(plain(folder))

    plain = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", refuse)
    found = collect_runs([tmp_path / ("long" * 100), shut, tmp_path / "fine"])
    assert [problem.reason for problem in found.problems] == ["File name too long", "cannot be read: Permission denied"]
    assert len(report_variants(found)) == 1


def unprinted(drawing: FigureSpec, path: Path) -> None:
    """Instead of matplotlib, which takes a second for each figure."""


def test_the_page_is_made_without_what_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", unprinted)
    spoilt(tmp_path / "[/red]", macro="?")
    told = CliRunner().invoke(app, ["report", str(tmp_path / "[/red]"), "-o", str(tmp_path / "page")])
    assert told.exit_code == 0, told.output
    words = " ".join(told.output.split())
    assert "not used:" in words
    assert "macro is ? in line 2, expected a number" in words
    assert "macro is ? in line 2" in (tmp_path / "page" / "index.html").read_text()


def test_scores_that_are_all_missing_are_a_page_without_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", unprinted)
    recorded(tmp_path, STRESS)
    path = tmp_path / "runs" / "scale-stress.csv"
    pd.read_csv(path).assign(macro=None, worst=None).to_csv(path, index=False)
    told = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "page")])
    assert told.exit_code == 0, told.output
    (table,) = (tmp_path / "page").rglob("tables/scale-stress.md")
    assert "| Kendall | – (0.738 ± 0.017) |" in table.read_text()
