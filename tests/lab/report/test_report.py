"""The ledger judges by the evidence; tables and figures say what the results say."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from counterpoise.lab.report.run_scores import keep_best_rates, collect_scores, collect_histories
from helpers.paths import ROOT
from rich.console import Console

from counterpoise.lab.engine import Run, Store
from counterpoise.lab.metrics.dense import HIGHER_IS_BETTER
from counterpoise.lab.report import Report, ledger, tables
from counterpoise.lab.report.figures import dense, scores
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.claims import Claim, Statement, combined_sd, higher, relative_drop, score, value_range

STUDY = STUDIES["rescaling"]


def frame(study: Study, noise: float = 0.0, shift: float = 0.0, seeds: int = 10) -> pd.DataFrame:
    """Results as the paper has them, with noise that all methods share and noise of their own."""
    draw = np.random.default_rng(0)
    common = draw.normal(size=100)
    rows = []
    for method in study.methods:
        for condition in study.conditions:
            mean = study.paper["macro"].get(method, {}).get(condition.key, (0.7, 0.0))[0]
            mean += shift * (method == "BPGS")
            for i, seed in enumerate(dict.fromkeys((*study.seeds, *study.ten_seeds[:seeds]))):
                value = mean + 0.05 * common[i] * bool(noise) + noise * draw.normal()
                rows.append((method, condition.key, seed, 3e-3, value, value - 0.1))
    return pd.DataFrame(rows, columns=["method", "condition", "seed", "lr", "macro", "worst"])


def judged(statement: Statement, results: pd.DataFrame, seeds: tuple[int, ...] = STUDY.ten_seeds) -> ledger.Judgement:
    study = replace(STUDY, claims=(Claim("a claim", "somewhere", statement),))
    return ledger.judge(study, results, seeds)[0]


def test_every_claim_holds_on_the_papers_own_numbers() -> None:
    for study in (STUDIES["rescaling"], STUDIES["normalisation"]):
        verdicts = [j.verdict for j in ledger.judge(study, frame(study), study.seeds) if j.reading != "BPGS (raw ω)"]
        assert verdicts == ["holds"] * len(study.claims)


def test_a_claim_that_fails_is_reported() -> None:
    worse = frame(STUDY, noise=0.002, shift=-0.2)
    assert judged(higher("BPGS", ["Kendall"], ["×1000"]), worse).verdict == "does not hold"
    assert judged(higher("BPGS", ["Kendall"], ["×1000"]), frame(STUDY, noise=0.002)).verdict == "holds"


def test_pairs_decide_what_the_spread_over_seeds_would_drown() -> None:
    """All methods share a noise of 0.05 over seeds; a difference of 0.015 is plain once seeds are paired."""
    finding = judged(higher("BPGS", ["Kendall"], ["×10"]), frame(STUDY, noise=0.002)).decisive
    assert finding.verdict == "holds"
    assert finding.high - finding.low < 0.01
    assert finding.effect > 3


def test_what_noise_could_have_made_is_undecided() -> None:
    assert judged(higher("Kendall", ["BPGS"], ["×1"]), frame(STUDY, noise=0.05)).verdict == "undecided"


def test_one_seed_decides_nothing() -> None:
    statement = higher("BPGS", ["Kendall"], ["×1000"])
    assert judged(statement, frame(STUDY), (42, 43)).verdict == "holds"
    alone = judged(statement, frame(STUDY), (42,))
    assert alone.verdict == "undecided"
    assert alone.decisive.ours == pytest.approx(0.778 - 0.637)


def test_a_conjunction_is_as_strong_as_its_weakest_part() -> None:
    both = (score("BPGS", "×1") > 0.5) & (score("BPGS", "×10") > 0.99)
    judgement = judged(both, frame(STUDY))
    assert judgement.verdict == "does not hold"
    assert judgement.decisive.ours == pytest.approx(0.784)


def test_a_claim_on_runs_that_are_missing_is_not_run() -> None:
    results = frame(STUDY)
    assert judged(higher("BPGS", ["Kendall"], ["×1"]), results[results["seed"] != 47]).verdict == "not run"


def test_quantities_are_what_they_say() -> None:
    numbers = {"×1": np.array([0.8, 0.6]), "×1000": np.array([0.4, 0.5])}

    def lookup(cell: object) -> np.ndarray:
        values = numbers[cell.condition]  # type: ignore[attr-defined]
        return np.asarray(values.mean() if cell.statistic == "mean" else values.std())  # type: ignore[attr-defined]

    assert relative_drop("a", "×1", "×1000").evaluate(lookup) == pytest.approx((0.7 - 0.45) / 0.7)
    assert value_range(score("a", "×1"), score("a", "×1000")).evaluate(lookup) == pytest.approx(0.25)
    assert combined_sd(score("a", "×1"), score("a", "×1000")).evaluate(lookup) == pytest.approx(np.hypot(0.1, 0.05))


def test_tables_show_ours_beside_the_papers() -> None:
    cells = tables.table_entries(STUDY, frame(STUDY), STUDY.seeds)
    text = tables.markdown(STUDY, cells, STUDY.seeds)
    assert "| Kendall | **0.780 ± 0.000** (0.780 ± 0.007) | <ins>0.769 ± 0.000</ins> (0.769 ± 0.013) |" in text
    csv = tables.csv(cells).splitlines()
    assert len(csv) == 1 + 2 * 4 * 12
    assert csv[0].startswith("study,part,metric,method,condition,mean,sd,count,paper_mean")


def test_the_best_and_the_second_of_a_column_are_marked() -> None:
    (grid, *_) = tables.table_grids(STUDY, tables.table_entries(STUDY, frame(STUDY), STUDY.seeds))
    marks = tables.mark_best(grid)
    columns = {head: [marks[method][i] for method in grid.rows] for i, head in enumerate(grid.heads)}
    assert list(grid.rows) == ["Kendall", "UWSO", "BPGS", "BPGS (raw ω)"]
    assert columns["×1"] == ["best", "", "second", ""]  # 0.780, 0.622, 0.777, 0.700
    assert columns["×1000"] == ["", "", "best", "second"]  # 0.637, 0.681, 0.778, 0.700
    assert [row[0] for row in tables.mark_best(grid, paper=True).values()] == ["best", "", "second", ""]


def fewer(keep: Callable[[pd.DataFrame], "pd.Series[bool]"]) -> str:
    """The tables at the study's seeds, of what is kept of its runs."""
    whole = frame(STUDY)
    return tables.markdown(STUDY, tables.table_entries(STUDY, whole[keep(whole)], STUDY.seeds), STUDY.seeds)


def test_fewer_seeds_are_named_once_where_that_says_it() -> None:
    first = STUDY.seeds[0]
    of_all = fewer(lambda runs: runs["seed"] == first)
    assert ", seed 42**" in of_all
    assert "(seed 42)" not in of_all
    of_a_row = fewer(lambda runs: (runs["method"] != "UWSO") | (runs["seed"] == first))
    assert "| UWSO (seed 42) | 0.622 (0.622 ± 0.073) |" in of_a_row
    assert ", seeds 42–44**" in of_a_row
    of_a_cell = fewer(lambda runs: (runs["method"] != "UWSO") | (runs["condition"] != "×1") | (runs["seed"] == first))
    assert "| UWSO | 0.622 (seed 42) (0.622 ± 0.073) |" in of_a_cell


def test_a_table_with_fewer_seeds_fits_the_terminal() -> None:
    whole = frame(STUDY)
    partial = whole[(whole["method"] != "UWSO") | (whole["seed"] == STUDY.seeds[0])]
    cells = tables.table_entries(STUDY, partial, STUDY.seeds)
    for width in (60, 80, 100):
        console = Console(record=True, width=width, file=io.StringIO())
        for table in tables.terminal(STUDY, cells, STUDY.seeds, width):
            console.print(table)
        text = console.export_text()
        assert "UWSO (seed 42)" in text
        assert "…" not in text


def test_errors_are_best_when_small_and_what_is_neither_is_not_marked() -> None:
    def entry(method: str, metric: str, value: float) -> tables.Entry:
        return tables.Entry("s", "", metric, method, "c", "c", value, 0.0, 3, None, None)

    rows = {
        name: [entry(name, m, v) for m in ("rmse", "parameters")] for name, v in (("a", 2.0), ("b", 1.0), ("c", 1.0))
    }
    marks = tables.mark_best(tables.Grid("", "", ["RMSE ↓", "parameters"], rows))
    assert marks == {"a": ["second", ""], "b": ["best", ""], "c": ["best", ""]}  # what prints alike is alike


def test_a_book_shows_and_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.report.collect_scores", lambda study, *_, **__: frame(study, noise=0.01))
    report = Report([STUDIES[name] for name in ("rescaling", "scale-stress", "heterogeneous")], Store(tmp_path))
    console = Console(record=True, width=100, file=io.StringIO())
    report.show(console)
    text = console.export_text()
    assert "Claims ledger" in text
    assert "agrees better with BPGS as released" in text
    written = report.write(tmp_path)
    names = {path.name for path in written}
    assert {"ledger.csv", "ledger.md", "stress.png", "degradation.pdf", "heterogeneous.png", "rescaling.tex"} <= names
    assert {path.with_suffix(".pdf").name for path in written if path.suffix == ".png"} <= names
    assert all(path.stat().st_size > 100 for path in written)
    rows = pd.read_csv(tmp_path / "ledger.csv")
    assert set(rows["verdict"]) <= {"holds", "does not hold", "undecided"}
    assert {"effect", "low", "high", "paper", "ours"} <= set(rows.columns)


class Given:
    """Results of a grid: of each run that is `here` scores that its seed alone decides."""

    def __init__(self, here: Callable[[Run], bool]) -> None:
        self.here = here

    def result(self, run: Run) -> dict[str, Any] | None:
        return {"chart": {}, "weights": {}, "metrics": dict.fromkeys(HIGHER_IS_BETTER, run.seed / 100)} if self.here(run) else None

    def history(self, run: Run) -> list[dict[str, Any]]:
        return [{"epoch": 1, "weight": [], "monitor": 0.5, "chart": {}}]


def test_a_table_that_is_asked_for_borrows_runs_at_its_own_seeds_alone() -> None:
    study = STUDIES["nyuv2"]
    usual = {cell.run for cell in study.grid() if not cell.condition.opt_in}
    (one,) = [c.run for c in study.grid(seeds=[43]) if (c.method, c.condition.key) == ("UW-O", "beyond")]
    given = Given(lambda run: run in usual or run == one)
    found = collect_scores(study, given)
    assert set(found["condition"]) == {"main", "beyond"}
    beyond = found[found["condition"] == "beyond"]
    assert list(zip(beyond["method"], beyond["seed"], strict=True)) == [
        ("Static", 43), ("Kendall", 43), ("BPGS", 43), ("UW-O", 43)
    ]  # fmt: skip
    assert beyond["delta_m"].tolist() == [0.0] * 4  # against Static there, not against its mean over three seeds
    assert (found[(found["condition"] == "main") & (found["seed"] != 43)]["delta_m"] != 0).all()
    drawn = collect_histories(study, given)
    assert set(drawn[drawn["condition"] == "beyond"]["seed"]) == {43}


def test_delta_m_is_measured_against_static_at_the_same_seeds() -> None:
    recorded = pd.read_csv(ROOT / "results" / "nyuv2" / "report" / "runs" / "nyuv2.csv")
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


def test_delta_m_is_nowhere_that_static_is_not() -> None:
    recorded = pd.read_csv(ROOT / "results" / "nyuv2" / "report" / "runs" / "nyuv2.csv")
    study, static = STUDIES["nyuv2"], recorded["method"] == "Static"
    later = static & (recorded["seed"] > 42)
    missing, diverged = recorded[~later], recorded.assign(miou=recorded["miou"].mask(later))
    alone = recorded[recorded["seed"] == 42]
    for frame in (missing, diverged):
        for metric in ("delta_m", "delta_m_percent"):
            found, expected = (
                {(e.method, e.condition): e for e in tables.table_entries(study, runs, study.seeds) if e.metric == metric}
                for runs in (frame, alone)
            )
            assert found["BPGS", "main"].seeds == (42,)
            assert found["BPGS", "main"].mean == pytest.approx(expected["BPGS", "main"].mean)


def test_a_figure_of_delta_m_says_against_which_static_and_at_which_seeds() -> None:
    recorded = pd.read_csv(ROOT / "results" / "nyuv2" / "report" / "runs" / "nyuv2.csv")
    study = STUDIES["nyuv2"]
    said = {}
    for condition in study.conditions:
        drawing = dense.delta(study, condition, recorded[recorded["condition"] == condition.key])
        said[condition.key] = f"{drawing.title}: {drawing.panels[0].title}"
    assert said["main"] == "NYUv2, main (3 seeds, ± 1 sd): Δ_M ↑ against Static"
    assert said["equal clips 1"].endswith("(seed 42): Δ_M ↑ against Static")
    assert said["equal clips 10"].endswith("(seed 42): Δ_M ↑ against Static of the main table")
    assert said["seg ×1000"].endswith("Δ_M ↑ against Static of the main table")
    main = recorded[recorded["condition"] == "main"]
    partly = main.assign(delta_m=main["delta_m"].where(main["seed"] == 42))
    assert "(seed 42)" in dense.delta(study, study.conditions[0], partly).title


def test_panels_of_different_seeds_say_how_many() -> None:
    results = frame(STUDY)
    extra = {condition.key for condition in STUDY.conditions if condition.extra}
    results = results[~results["condition"].isin(extra) | results["seed"].isin(STUDY.seeds)]
    titles = [panel.title for panel in scores.curves(STUDY, results).panels]
    assert titles == 2 * ["the paper's (10 seeds)", "graded factors (3 seeds)", "uniform factors (3 seeds)"]


def test_a_single_method_has_a_row_for_each_setting() -> None:
    study = STUDIES["nyuv2-batch-size"]
    rows = [{"method": "BPGS", "condition": key, "seed": 42, "lr": 0.1} for key in ("bs=4", "bs=8", "bs=16")]
    results = pd.DataFrame([row | {m: float(i) for m in study.metrics} for i, row in enumerate(rows)])
    cells = tables.table_entries(study, results, [42])
    (grid,) = tables.table_grids(study, cells)
    assert list(grid.rows) == ["bs=4", "bs=8", "bs=16"]
    assert grid.heads == [tables.METRIC_NAMES[metric] for metric in study.metrics]
    assert not any(mark for row in tables.mark_best(grid).values() for mark in row)
    assert "| setting | total loss ↓ |" in tables.markdown(study, cells, [42])


def test_a_method_that_diverged_at_every_rate_has_a_row_and_no_score() -> None:
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
def test_a_rate_does_not_win_by_the_run_that_survived_there(how: str) -> None:
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
    ill = best["method"].eq(second) & (best["seed"] > 0)
    partly = best[~ill] if how == "missing" else best.assign(macro=best["macro"].mask(ill))
    assert tables.ranked(study, best) == [second, first]
    assert tables.ranked(study, partly) == [first, second]  # nor does a method


def test_a_score_that_a_run_lacks_is_not_counted_and_does_not_differ_from_the_paper() -> None:
    results = frame(STUDY)
    there = results["seed"] == 42
    results.loc[(results["method"] == "BPGS") & ~there, "macro"] = np.nan
    results.loc[results["method"] == "Kendall", "macro"] = np.nan
    cells = {(e.method, e.condition): e for e in tables.table_entries(STUDY, results, STUDY.seeds) if e.metric == "macro"}
    assert cells["BPGS", "×1"].ours().endswith("(seed 42)")
    assert cells["Kendall", "×1"].ours() == "–"
    assert cells["Kendall", "×1"].agrees


def test_a_method_keeps_one_row_where_only_some_of_its_cells_were_run() -> None:
    study = STUDIES["beyond-rescaling"]
    method, rate = next(iter(study.methods)), study.rates[0]
    place = (method, study.conditions[0].key, 42, rate, 0.5, 0.4)
    results = pd.DataFrame([place], columns=["method", "condition", "seed", "lr", "macro", "worst"])
    for grid in tables.table_grids(study, tables.table_entries(study, keep_best_rates(results), [42])):
        assert list(grid.rows) == [f"{method} ({rate:g})"]
