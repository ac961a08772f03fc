"""Recorded scores keep their form, are checked cell by cell, and never prevent the rest of a page."""

import re
import shutil
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import app
from helpers.fake_runs import fake_run
from typer.testing import CliRunner

from counterpoise.lab.engine import Store
from counterpoise.lab.report import Report, write_page
from counterpoise.lab.report.figures.spec import FigureSpec
from counterpoise.lab.report.run_collection import CollectedRuns, collect_runs
from counterpoise.lab.report.variants import report_variants, seeds_to_report
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.dense import on_synthetic_rooms

STRESS, YEAST, NYUV2 = STUDIES["scale-stress"], STUDIES["yeast"], STUDIES["nyuv2"]
TASKS = ("seg", "depth", "normals")
ANCHORS = ("rescaling", "rescaling-recorded-in-rates")


def record_scores(folder: Path, study: Study, epochs: int | None = None) -> None:
    """Write the report of some runs of a study at two seeds, and delete the runs."""
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
        (YEAST, 60, "60 epochs"),  # early stopping could have ended there
        (on_synthetic_rooms(NYUV2), None, "on ray-cast scenes"),
        (on_synthetic_rooms(NYUV2, small=True), None, "quick form on small scenes"),
        (on_synthetic_rooms(NYUV2, small=True), 120, "quick form on small scenes, 120 epochs"),
        (STUDIES["tabular"].quick_form(), 100, "quick form, 100 epochs"),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_recorded_scores_keep_the_form_of_their_study(
    study: Study, epochs: int | None, form: str, tmp_path: Path
) -> None:
    record_scores(tmp_path, study, epochs)
    found = collect_runs([tmp_path / "runs" / f"{study.name}.csv"])
    assert not found.problems
    (variant,) = report_variants(found)
    assert variant.label == ", ".join(filter(None, ("recorded in runs", form)))
    (read,) = variant.studies
    full = STUDIES[study.name]
    expected = (full.paper, full.claims, full.saturation) if not form else ({}, (), None)
    assert (read.paper, read.claims, read.saturation) == expected


def test_more_epochs_than_the_schedule_are_recognised(tmp_path: Path) -> None:
    rows = {"method": ["BPGS"], "condition": [STRESS.conditions[0].key], "seed": [42], "lr": [0.1], "epochs": [25]}
    (tmp_path / "runs").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "runs" / "scale-stress.csv", index=False)
    (variant,) = report_variants(collect_runs([tmp_path]))
    assert variant.label.endswith("more epochs")
    assert variant.studies[0].claims == ()


def test_metric_that_no_run_measured_counts_as_not_run(tmp_path: Path) -> None:
    study, store = STUDIES["nyuv2-overhead"], Store(tmp_path)
    for cell in study.grid():
        history, result = fake_run(cell.run, TASKS, epochs=12)
        result["metrics"] |= {"epoch_seconds": 1.0, "parameters": 100.0}  # memory is not measured on a CPU
        store.finish(cell.run, history, result)
    Report([study], store).write_texts(tmp_path / "report")
    for place in (tmp_path / "nyuv2-overhead", tmp_path / "report"):
        found = collect_runs([place])
        (variant,) = report_variants(found)
        seeds = variant.seeds or None
        report = Report(
            variant.studies, found, seeds=seeds, recorded=variant.recorded, choose_seed_sets=seeds_to_report
        )
        verdicts = {j.claim.text: j.verdict for j in report.judgements[study.name][0]}
        assert verdicts["BPGS takes less than 1 % more memory than Kendall"] == "not run"
        assert verdicts["BPGS takes less than 1 % more time than Kendall"] == "holds"
        report.write_texts(tmp_path / "again")
        assert "memory" not in (tmp_path / "again" / "tables" / "nyuv2-overhead.md").read_text()


def record_with_changes(folder: Path, *, row: int = 0, **cells: object) -> CollectedRuns:
    """Record the scores of two studies, and change cells in one row of the first."""
    record_scores(folder, STRESS)
    path = folder / "runs" / "scale-stress.csv"
    frame = pd.read_csv(path, dtype="str")
    for column, value in cells.items():
        frame.loc[row, column] = value
    frame.to_csv(path, index=False)
    record_scores(folder, STUDIES["normalisation"])
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
        ({"seed": "42.5"}, "damaged", "seed is 42.5 in line 4, expected a non-negative integer"),
        ({"seed": "-1"}, "damaged", "seed is -1.0 in line 4, expected a non-negative integer"),
        ({"seed": "1" * 30}, "damaged", "expected a non-negative integer"),
        ({"method": None}, "unrecognised", "found unknown methods: ['']"),
        ({"condition": "×7"}, "unrecognised", "found unknown conditions: ['×7']"),
        (
            {"condition": "×1", "seed": "42"},
            "damaged",
            "1 duplicate rows, the first in line 4 (Kendall, ×1, seed 42)",
        ),
        ({"condition": "×1", "seed": "42", "lr": "0.5"}, "damaged", "1 duplicate rows"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_cell_excludes_only_its_table(cells: dict[str, object], kind: str, reason: str, tmp_path: Path) -> None:
    found = record_with_changes(tmp_path, row=2, **cells)
    (problem,) = found.problems
    assert problem.path.endswith("scale-stress.csv")
    assert problem.kind == kind
    assert reason in problem.reason
    (variant,) = report_variants(found)
    assert [study.name for study in variant.studies] == ["normalisation"]


def test_empty_score_is_missing(tmp_path: Path) -> None:
    found = record_with_changes(tmp_path, macro=None)
    assert not found.problems
    frame = found.recorded[tmp_path]["scale-stress"]
    assert frame["macro"].isna().sum() == 1


def test_table_without_rows_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "scale-stress.csv").write_text("method,condition,seed,lr,macro\n")
    (problem,) = collect_runs([tmp_path]).problems
    assert (problem.kind, problem.reason) == ("partial", "has no rows")


def test_numeric_conditions_are_read_as_text(tmp_path: Path) -> None:
    record_scores(tmp_path, STUDIES["nyuv2-first-batch"])
    found = collect_runs([tmp_path])
    (variant,) = report_variants(found)
    report = Report(variant.studies, found, recorded=variant.recorded, choose_seed_sets=seeds_to_report)
    frame = report.frames["nyuv2-first-batch"]
    assert set(frame["condition"]) == {condition.key for condition in STUDIES["nyuv2-first-batch"].conditions}


def test_folders_with_the_same_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("one", "two"):
        record_scores(tmp_path / name / "report", STRESS)
    found = collect_runs([tmp_path / "one" / "report", tmp_path / "two" / "report"])
    assert [variant.label for variant in report_variants(found)] == ["recorded in one/report", "recorded in two/report"]


def test_folder_is_read_once_despite_links(tmp_path: Path) -> None:
    record_scores(tmp_path, STRESS)
    (tmp_path / "around").symlink_to(tmp_path)
    found = collect_runs([tmp_path, tmp_path / "around", tmp_path.parent / tmp_path.name])
    assert list(found.recorded) == [tmp_path]
    assert not found.problems


def test_different_scores_of_one_cell_are_another_run(tmp_path: Path) -> None:
    record_scores(tmp_path / "same", STRESS)
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


def test_recorded_scores_have_no_curves_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", skip_figure)
    record_scores(tmp_path / "rates", STUDIES["rescaling"])
    store = Store(tmp_path / "trained")
    for cell in STUDIES["rescaling"].grid(seeds=(44,)):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    written = write_page(collect_runs([store.root, tmp_path / "rates"]), tmp_path / "page")
    sections = re.split(r"(?=<section)", written[0].read_text())
    own, scores = (next(s for s in sections if f'id="{name}"' in s) for name in ANCHORS)
    assert ": chart of BPGS" in own
    assert ": chart of BPGS" not in scores


def test_quick_form_is_recognised(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for cell in islice(STUDIES["tabular"].quick_form().grid(), 4):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    assert [variant.label for variant in report_variants(collect_runs([tmp_path]))] == ["quick form"]


def test_unrelated_table_does_not_hide_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for cell in islice(STRESS.grid(), 4):
        store.finish(cell.run, *fake_run(cell.run, TASKS))
    (store.root / "summary.csv").write_text("a,b\n1,2\n")
    assert len(collect_runs([tmp_path]).runs) == 4


@pytest.mark.parametrize("name", ["ö", "\udcff"], ids=["letters", "bytes"])
def test_folders_may_have_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", skip_figure)
    places = [tmp_path / f"run-{other}" for other in ("ä", name)]
    for place in places:
        record_scores(place, STRESS)
    page, *beside = write_page(collect_runs(places), tmp_path / "page")
    assert len(set(beside)) == len(beside)
    anchors = re.findall(r'<section class="study" id="([^"]*)"', page.read_text())
    assert len(set(anchors)) == len(anchors) == 2


def test_unreadable_folders_become_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_scores(tmp_path / "fine", STRESS)
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


def skip_figure(spec: FigureSpec, path: Path) -> None:
    """Replaces matplotlib, which takes a second per figure."""


def test_page_is_written_without_damaged_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", skip_figure)
    record_with_changes(tmp_path / "[/red]", macro="?")
    called = CliRunner().invoke(app, ["report", str(tmp_path / "[/red]"), "-o", str(tmp_path / "page")])
    assert called.exit_code == 0, called.output
    output = " ".join(called.output.split())
    assert "not used:" in output
    assert "macro is ? in line 2, expected a number" in output
    assert "macro is ? in line 2" in (tmp_path / "page" / "index.html").read_text()


def test_page_without_any_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", skip_figure)
    record_scores(tmp_path, STRESS)
    path = tmp_path / "runs" / "scale-stress.csv"
    pd.read_csv(path).assign(macro=None, worst=None).to_csv(path, index=False)
    called = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "page")])
    assert called.exit_code == 0, called.output
    (table,) = (tmp_path / "page").rglob("tables/scale-stress.md")
    assert "| Kendall | – (0.738 ± 0.017) |" in table.read_text()
