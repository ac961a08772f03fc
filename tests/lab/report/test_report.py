"""Verdicts of the ledger, tables, figures, and the files of a report."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.paper_scores import paper_scores
from helpers.paths import ROOT
from rich.console import Console

from counterpoise.lab.engine import Run, Store
from counterpoise.lab.engine.archive import ArchivedStore
from counterpoise.lab.metrics.dense import HIGHER_IS_BETTER
from counterpoise.lab.report import Report, ledger, tables
from counterpoise.lab.report.figures import dense, scores
from counterpoise.lab.report.figures.spec import Line
from counterpoise.lab.report.figures.study_figures import study_figures
from counterpoise.lab.report.run_scores import collect_histories, collect_scores, keep_best_rates
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.claims import Claim, Statement, combined_sd, higher, relative_drop, score, value_range
from counterpoise.lab.studies.pinn import two_deviations

STUDY = STUDIES["rescaling"]


def judged(statement: Statement, results: pd.DataFrame, seeds: tuple[int, ...] = STUDY.ten_seeds) -> ledger.Judgement:
    study = replace(STUDY, claims=(Claim("a claim", "somewhere", statement),))
    return ledger.judge(study, results, seeds)[0]


def test_claims_hold_on_the_papers_numbers() -> None:
    for study in (STUDIES["rescaling"], STUDIES["normalisation"]):
        verdicts = [
            j.verdict for j in ledger.judge(study, paper_scores(study), study.seeds) if j.reading != "BPGS (raw ω)"
        ]
        assert verdicts == ["holds"] * len(study.claims)


def test_contradicted_claim_does_not_hold() -> None:
    worse = paper_scores(STUDY, noise=0.002, shift=-0.2)
    assert judged(higher("BPGS", ["Kendall"], ["×1000"]), worse).verdict == "does not hold"
    assert judged(higher("BPGS", ["Kendall"], ["×1000"]), paper_scores(STUDY, noise=0.002)).verdict == "holds"


def test_errors_are_compared_with_published_ones_by_their_factor() -> None:
    """An error far below a published one does not agree with it, even if two deviations reach below zero."""
    for ours, verdict, note in (
        (0.0035, "does not hold", "lower than published"),
        (0.05, "holds", ""),
        (0.5, "does not hold", "higher than published"),
    ):
        results = paper_scores(STUDY, noise=0.0).assign(macro=ours)
        factor = two_deviations(0.0735, 0.0390)
        judgement = judged(score("BPGS", "×1").within_factor(0.0735, factor), results)
        assert (judgement.verdict, judgement.decisive.note) == (verdict, note)
        assert note in ledger.markdown([judgement])


def test_paired_seeds_decide_small_differences() -> None:
    """All methods share noise of 0.05 over seeds; pairing removes it, and a difference of 0.015 is significant."""
    finding = judged(higher("BPGS", ["Kendall"], ["×10"]), paper_scores(STUDY, noise=0.002)).decisive
    assert finding.verdict == "holds"
    assert finding.high - finding.low < 0.01
    assert finding.effect > 3


def test_difference_within_noise_is_undecided() -> None:
    assert judged(higher("Kendall", ["BPGS"], ["×1"]), paper_scores(STUDY, noise=0.05)).verdict == "undecided"


def test_single_seed_is_undecided() -> None:
    statement = higher("BPGS", ["Kendall"], ["×1000"])
    assert judged(statement, paper_scores(STUDY), (42, 43)).verdict == "holds"
    alone = judged(statement, paper_scores(STUDY), (42,))
    assert alone.verdict == "undecided"
    assert alone.decisive.ours == pytest.approx(0.778 - 0.637)


def test_conjunction_fails_with_its_weakest_part() -> None:
    both = (score("BPGS", "×1") > 0.5) & (score("BPGS", "×10") > 0.99)
    judgement = judged(both, paper_scores(STUDY))
    assert judgement.verdict == "does not hold"
    assert judgement.decisive.ours == pytest.approx(0.784)


def test_claim_with_missing_runs_is_not_run() -> None:
    results = paper_scores(STUDY)
    assert judged(higher("BPGS", ["Kendall"], ["×1"]), results[results["seed"] != 47]).verdict == "not run"


def test_quantities_of_claims() -> None:
    numbers = {"×1": np.array([0.8, 0.6]), "×1000": np.array([0.4, 0.5])}

    def lookup(cell: object) -> np.ndarray:
        values = numbers[cell.condition]  # type: ignore[attr-defined]
        return np.asarray(values.mean() if cell.statistic == "mean" else values.std())  # type: ignore[attr-defined]

    assert relative_drop("a", "×1", "×1000").evaluate(lookup) == pytest.approx((0.7 - 0.45) / 0.7)
    assert value_range(score("a", "×1"), score("a", "×1000")).evaluate(lookup) == pytest.approx(0.25)
    assert combined_sd(score("a", "×1"), score("a", "×1000")).evaluate(lookup) == pytest.approx(np.hypot(0.1, 0.05))


def test_tables_show_our_and_the_papers_numbers() -> None:
    cells = tables.table_entries(STUDY, paper_scores(STUDY), STUDY.seeds)
    text = tables.markdown(STUDY, cells, STUDY.seeds)
    assert "| Kendall | **0.780 ± 0.000** (0.780 ± 0.007) | <ins>0.769 ± 0.000</ins> (0.769 ± 0.013) |" in text
    csv = tables.csv(cells).splitlines()
    assert len(csv) == 1 + 2 * 4 * 12
    assert csv[0].startswith("study,part,metric,method,condition,mean,sd,count,paper_mean")


def test_best_and_second_best_of_a_column_are_marked() -> None:
    (grid, *_) = tables.table_grids(STUDY, tables.table_entries(STUDY, paper_scores(STUDY), STUDY.seeds))
    marks = tables.mark_best(grid)
    columns = {head: [marks[method][i] for method in grid.rows] for i, head in enumerate(grid.heads)}
    assert list(grid.rows) == ["Kendall", "UWSO", "BPGS", "BPGS (raw ω)"]
    assert columns["×1"] == ["best", "", "second", ""]  # 0.780, 0.622, 0.777, 0.700
    assert columns["×1000"] == ["", "", "best", "second"]  # 0.637, 0.681, 0.778, 0.700
    assert [row[0] for row in tables.mark_best(grid, paper=True).values()] == ["best", "", "second", ""]


def table_with_runs(keep: Callable[[pd.DataFrame], "pd.Series[bool]"]) -> str:
    """Return the tables at the study's seeds from a subset of its runs."""
    whole = paper_scores(STUDY)
    return tables.markdown(STUDY, tables.table_entries(STUDY, whole[keep(whole)], STUDY.seeds), STUDY.seeds)


def test_missing_seeds_are_noted_once_per_table_row_or_cell() -> None:
    first = STUDY.seeds[0]
    whole_table = table_with_runs(lambda runs: runs["seed"] == first)
    assert ", seed 42**" in whole_table
    assert "(seed 42)" not in whole_table
    one_row = table_with_runs(lambda runs: (runs["method"] != "UWSO") | (runs["seed"] == first))
    assert "| UWSO (seed 42) | 0.622 (0.622 ± 0.073) |" in one_row
    assert ", seeds 42–44**" in one_row
    one_cell = table_with_runs(
        lambda runs: (runs["method"] != "UWSO") | (runs["condition"] != "×1") | (runs["seed"] == first)
    )
    assert "| UWSO | 0.622 (seed 42) (0.622 ± 0.073) |" in one_cell


def test_table_with_missing_seeds_fits_the_terminal() -> None:
    whole = paper_scores(STUDY)
    partial = whole[(whole["method"] != "UWSO") | (whole["seed"] == STUDY.seeds[0])]
    cells = tables.table_entries(STUDY, partial, STUDY.seeds)
    for width in (60, 80, 100):
        console = Console(record=True, width=width, file=io.StringIO())
        for table in tables.terminal(STUDY, cells, STUDY.seeds, width):
            console.print(table)
        text = console.export_text()
        assert "UWSO (seed 42)" in text
        assert "…" not in text


def test_best_respects_the_direction_of_a_metric() -> None:
    def entry(method: str, metric: str, value: float) -> tables.Entry:
        return tables.Entry("s", "", metric, method, "c", "c", value, 0.0, 3, None, None)

    rows = {
        name: [entry(name, m, v) for m in ("rmse", "parameters")] for name, v in (("a", 2.0), ("b", 1.0), ("c", 1.0))
    }
    marks = tables.mark_best(tables.Grid("", "", ["RMSE ↓", "parameters"], rows))
    assert marks == {"a": ["second", ""], "b": ["best", ""], "c": ["best", ""]}  # equal as printed


def test_report_shows_and_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "counterpoise.lab.report.report.collect_scores", lambda study, *_, **__: paper_scores(study, noise=0.01)
    )
    report = Report([STUDIES[name] for name in ("rescaling", "scale-stress", "heterogeneous")], Store(tmp_path))
    console = Console(record=True, width=100, file=io.StringIO())
    report.show(console)
    text = console.export_text()
    assert "Claims ledger" in text
    assert "agrees better with BPGS as released" in text
    for name in ("tables/rescaling.csv", "figures/stress.png", "figures/stress.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)  # is replaced: nobody reads it
    written = report.write(tmp_path)
    assert all(path.is_file() for path in written)
    names = {path.name for path in written}
    assert {"ledger.csv", "ledger.md", "stress.png", "degradation.pdf", "heterogeneous.png", "rescaling.tex"} <= names
    assert {path.with_suffix(".pdf").name for path in written if path.suffix == ".png"} <= names
    assert all(path.stat().st_size > 100 for path in written)
    rows = pd.read_csv(tmp_path / "ledger.csv")
    assert set(rows["verdict"]) <= {"holds", "does not hold", "undecided"}
    assert {"effect", "low", "high", "paper", "ours"} <= set(rows.columns)


class FakeResults:
    """Results of the runs for which `finished` is true, with metrics that depend only on the seed."""

    def __init__(self, finished: Callable[[Run], bool]) -> None:
        self.finished = finished

    def result(self, run: Run) -> dict[str, Any] | None:
        metrics = dict.fromkeys(HIGHER_IS_BETTER, run.seed / 100)
        return {"chart": {}, "weights": {}, "metrics": metrics} if self.finished(run) else None

    def history(self, run: Run) -> list[dict[str, Any]]:
        return [{"epoch": 1, "weight": [], "monitor": 0.5, "chart": {}}]


def test_opt_in_table_borrows_runs_only_at_its_own_seeds() -> None:
    study = STUDIES["nyuv2"]
    default = {cell.run for cell in study.grid() if not cell.condition.opt_in}
    (one,) = [c.run for c in study.grid(seeds=[43]) if (c.method, c.condition.key) == ("UW-O", "beyond")]
    results = FakeResults(lambda run: run in default or run == one)
    found = collect_scores(study, results)
    assert set(found["condition"]) == {"main", "beyond"}
    beyond = found[found["condition"] == "beyond"]
    assert list(zip(beyond["method"], beyond["seed"], strict=True)) == [
        ("Static", 43), ("Kendall", 43), ("BPGS", 43), ("UW-O", 43)
    ]  # fmt: skip
    assert beyond["delta_m"].tolist() == [0.0] * 4  # against Static there, not against its mean over three seeds
    assert (found[(found["condition"] == "main") & (found["seed"] != 43)]["delta_m"] != 0).all()
    drawn = collect_histories(study, results)
    assert set(drawn[drawn["condition"] == "beyond"]["seed"]) == {43}


@cache
def recorded_nyuv2() -> pd.DataFrame:
    return collect_scores(STUDIES["nyuv2"], ArchivedStore(ROOT / "results" / "nyuv2"), device="cuda")


def test_delta_m_is_relative_to_static_at_the_same_seeds() -> None:
    recorded = recorded_nyuv2()
    other = recorded[(recorded["method"] == "Static") & (recorded["seed"] == 42)].assign(seed=45, miou=0.1)
    study = STUDIES["nyuv2"]
    alone, beside = (
        {
            entry.method: entry.mean
            for entry in tables.table_entries(study, frame, study.seeds)
            if (entry.metric, entry.condition) == ("delta_m", "main")
        }
        for frame in (recorded, pd.concat([recorded, other]))
    )
    assert alone["Static"] == pytest.approx(0.0, abs=1e-9)
    assert beside["BPGS"] == pytest.approx(alone["BPGS"])


def test_delta_m_is_undefined_at_seeds_without_static() -> None:
    recorded = recorded_nyuv2()
    study, static = STUDIES["nyuv2"], recorded["method"] == "Static"
    later = static & (recorded["seed"] > 42)
    missing, diverged = recorded[~later], recorded.assign(miou=recorded["miou"].mask(later))
    alone = recorded[recorded["seed"] == 42]
    for frame in (missing, diverged):
        for metric in ("delta_m", "delta_m_percent"):
            found, expected = (
                {
                    (e.method, e.condition): e
                    for e in tables.table_entries(study, runs, study.seeds)
                    if e.metric == metric
                }
                for runs in (frame, alone)
            )
            assert found["BPGS", "main"].seeds == (42,)
            assert found["BPGS", "main"].mean == pytest.approx(expected["BPGS", "main"].mean)


def test_delta_m_figure_names_its_baseline_and_seeds() -> None:
    recorded = recorded_nyuv2()
    study = STUDIES["nyuv2"]
    titles = {}
    for condition in study.conditions:
        figure = dense.delta(study, condition, recorded[recorded["condition"] == condition.key])
        titles[condition.key] = f"{figure.title}: {figure.panels[0].title}"
    assert titles["main"] == "NYUv2, main (3 seeds, ± 1 sd): Δ_M ↑ against Static"
    assert titles["equal clips 1"].endswith("(seed 42): Δ_M ↑ against Static")
    assert titles["equal clips 10"].endswith("(seed 42): Δ_M ↑ against Static of the main table")
    assert titles["seg ×1000"].endswith("Δ_M ↑ against Static of the main table")
    main = recorded[recorded["condition"] == "main"]
    partly = main.assign(delta_m=main["delta_m"].where(main["seed"] == 42))
    assert "(seed 42)" in dense.delta(study, study.conditions[0], partly).title


def test_ranking_figure_leaves_out_the_seeds_that_choose_the_rates() -> None:
    study = STUDIES["penalised-tasks"]
    frame = pd.read_csv(ROOT / "results/penalties/runs/penalised-tasks.csv.xz")
    assert set(study.rate_seeds) < set(frame["seed"])
    (figure,) = study_figures(study, {study.name: frame}, pd.DataFrame).values()
    assert "(10 seeds, " in figure.title
    (search,) = study_figures(study, {study.name: frame[frame["seed"] < 2]}, pd.DataFrame).values()
    assert "(2 seeds, " in search.title


def test_rows_name_the_learning_rate_of_each_column() -> None:
    study, condition = STUDIES["penalised-tasks"], "shared-code"
    frame = pd.read_csv(ROOT / "results/penalties/runs/penalised-tasks.csv.xz").query("seed >= 42")
    grids = tables.table_grids(study, tables.table_entries(study, frame, study.seeds))
    grid = next(grid for grid in grids if grid.part == condition)
    for row in grid.rows.values():
        runs = [frame.query("method == @e.method and condition == @e.condition") for e in row]
        assert [*row[0].rates] == [run["lr"].iloc[0] for run in runs]
        assert all(run["lr"].nunique() == 1 for run in runs)
    assert "Sum (0.01, 0.01, 0.003)" in grid.rows
    assert "UW-O (0.003)" in grid.rows
    assert "(best learning rate of each column)" in tables.caption(study, grid, study.seeds)
    alike = replace(grid, rows={"UW-O (0.003)": grid.rows["UW-O (0.003)"]})
    assert "(best learning rate)" in tables.caption(study, alike, study.seeds)


def test_panels_state_their_number_of_seeds() -> None:
    results = paper_scores(STUDY)
    extra = {condition.key for condition in STUDY.conditions if condition.extra}
    results = results[~results["condition"].isin(extra) | results["seed"].isin(STUDY.seeds)]
    figure = scores.curves(STUDY, results)
    assert figure is not None
    titles = [panel.title for panel in figure.panels]
    assert titles == 2 * ["as in the paper (10 seeds)", "graded factors (3 seeds)", "uniform factors (3 seeds)"]


def test_method_without_a_style_is_drawn_in_grey() -> None:
    study = replace(STUDY, methods={**STUDY.methods, "New": STUDY.methods["Kendall"]})
    frame = paper_scores(STUDY).replace({"method": {"Kendall": "New"}})
    figure = study_figures(study, {study.name: frame}, pd.DataFrame)[study.name]
    colours = {m.label: m.style.colour for m in figure.panels[0].marks if isinstance(m, Line)}
    assert colours["New"] == "#888888"
    assert colours["BPGS"] != "#888888"


def test_study_of_one_method_has_a_row_per_setting() -> None:
    study = STUDIES["nyuv2-batch-size"]
    rows = [{"method": "BPGS", "condition": key, "seed": 42, "lr": 0.1} for key in ("bs=4", "bs=8", "bs=16")]
    results = pd.DataFrame([row | {m: float(i) for m in study.metrics} for i, row in enumerate(rows)])
    cells = tables.table_entries(study, results, [42])
    (grid,) = tables.table_grids(study, cells)
    assert list(grid.rows) == ["bs=4", "bs=8", "bs=16"]
    assert grid.heads == [tables.METRIC_NAMES[metric] for metric in study.metrics]
    assert not any(mark for row in tables.mark_best(grid).values() for mark in row)
    assert "| setting | total loss ↓ |" in tables.markdown(study, cells, [42])


def test_method_that_always_diverged_has_a_row_without_scores() -> None:
    study = STUDIES["beyond-rescaling"]
    fine, lost = list(study.methods)[:2]
    places = [(m, c.key, 42, rate) for m in (fine, lost) for c in study.conditions for rate in study.rates]
    results = pd.DataFrame(places, columns=["method", "condition", "seed", "lr"]).assign(worst=0.1)
    results["macro"] = np.where(results["method"] == lost, np.nan, results["lr"])
    best = keep_best_rates(results)
    assert set(best["lr"][best["method"] == fine]) == {max(study.rates)}
    (grid, *_) = tables.table_grids(study, tables.table_entries(study, best, [42]))
    rows = {name.split(" (")[0]: [entry.ours() for entry in row] for name, row in grid.rows.items()}
    assert len(grid.rows) == 2
    assert set(rows[lost]) == {"–"}
    assert "–" not in rows[fine]


@pytest.mark.parametrize("how", ["diverged", "missing"])
def test_best_rate_requires_as_many_finished_runs(how: str) -> None:
    study = STUDIES["beyond-rescaling"]
    first, second = list(study.methods)[:2]
    places = [(m, "×1", seed, rate) for m in (first, second) for rate in (1e-3, 1.0) for seed in range(10)]
    results = pd.DataFrame(places, columns=["method", "condition", "seed", "lr"]).assign(macro=0.7, worst=0.6)
    high = results["lr"] == 1.0
    lost = high & (results["method"] == first) & (results["seed"] > 0)
    results["macro"] = results["macro"].mask(high, 0.9).mask(lost)
    results = results[~lost] if how == "missing" else results
    best = keep_best_rates(results)
    assert dict(best.groupby("method")["lr"].first()) == {first: 1e-3, second: 1.0}
    assert len(best) == 20
    unfinished = best["method"].eq(second) & (best["seed"] > 0)
    partly = best[~unfinished] if how == "missing" else best.assign(macro=best["macro"].mask(unfinished))
    assert tables.method_order(study, best) == [second, first]
    assert tables.method_order(study, partly) == [first, second]  # the same holds for methods


def test_each_condition_can_have_its_own_best_rate() -> None:
    scores = {("main", 1e-3): 0.9, ("main", 1e-2): 0.5, ("other", 1e-3): 0.2, ("other", 1e-2): 0.4}
    results = pd.DataFrame(
        [("sum", condition, 42, rate, macro) for (condition, rate), macro in scores.items()],
        columns=["method", "condition", "seed", "lr", "macro"],
    )
    assert list(keep_best_rates(results)["macro"]) == [0.9, 0.2]
    assert list(keep_best_rates(results, by_condition=True)["macro"]) == [0.9, 0.4]


def test_missing_scores_are_not_counted() -> None:
    results = paper_scores(STUDY)
    first_seed = results["seed"] == 42
    results.loc[(results["method"] == "BPGS") & ~first_seed, "macro"] = np.nan
    results.loc[results["method"] == "Kendall", "macro"] = np.nan
    cells = {
        (e.method, e.condition): e for e in tables.table_entries(STUDY, results, STUDY.seeds) if e.metric == "macro"
    }
    assert cells["BPGS", "×1"].ours().endswith("(seed 42)")
    assert cells["Kendall", "×1"].ours() == "–"
    assert cells["Kendall", "×1"].agrees


def test_method_with_missing_cells_keeps_one_row() -> None:
    study = STUDIES["beyond-rescaling"]
    method, rate = next(iter(study.methods)), study.rates[0]
    place = (method, study.conditions[0].key, 42, rate, 0.5, 0.4)
    results = pd.DataFrame([place], columns=["method", "condition", "seed", "lr", "macro", "worst"])
    for grid in tables.table_grids(study, tables.table_entries(study, keep_best_rates(results), [42])):
        assert list(grid.rows) == [f"{method} ({rate:g})"]
