"""The studies on real tabular data: grids, the paper's table, ranks and figures."""

import io
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import toy_table
from helpers.commands import app
from helpers.paths import ROOT
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from counterpoise.lab.data import CATALOGUE
from counterpoise.lab.engine import Run, Store, execute, make_run_batches
from counterpoise.lab.report import Report, collect_runs, latex, ledger, ranks, saturation, tables, write_page
from counterpoise.lab.report.report import default_seed_sets
from counterpoise.lab.report.run_scores import collect_scores
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.base import Condition
from counterpoise.lab.studies.select import select_cells
from counterpoise.lab.studies.tabular import METHODS, SINGLE

YEAST, RF1, TABULAR = (STUDIES[name] for name in ("yeast", "rf1", "tabular"))


def paper_frame(study: Study, peak: float, reach: float) -> pd.DataFrame:
    """Return results that equal the paper's numbers at every seed."""
    rows = []
    for method in study.methods:
        values = {metric: study.paper[metric][method]["authors"][0] for metric in study.metrics}
        chart = {"peak": peak, "reach": reach} if method == "BPGS" else {"peak": np.nan, "reach": np.nan}
        rows += [{"method": method, "condition": "authors", "seed": seed} | values | chart for seed in study.seeds]
    return pd.DataFrame(rows)


def test_default_grid_is_the_papers_table() -> None:
    cells = [cell for study in (YEAST, RF1) for cell in select_cells(study, study.grid(), None, None)]
    assert len(cells) == 36
    assert {cell.run.model.kwargs["trunk"] for cell in cells} == {"residual"}
    assert {cell.run.data.kwargs.get("targets") for cell in cells} == {None, "online"}
    plain = select_cells(RF1, RF1.grid(seeds=range(42, 52)), None, ["plain", "raw targets"])
    assert len(plain) == 2 * 6 * 10
    assert {(c.run.model.kwargs["trunk"], c.run.data.kwargs["targets"]) for c in plain} == {
        ("plain", "online"),
        ("residual", "raw"),
    }
    assert {run.recipe.name: run.network_clip for run in (c.run for c in cells)} == {
        "static": 1.0, "kendall": 1.0, "uw-so": 1.0, "pcgrad": 1.0, "gradnorm-proxy": 1.0, "bpgs": 10.0,
    }  # fmt: skip


def test_claims_hold_on_the_papers_numbers() -> None:
    for study, peak, reach in ((YEAST, 0.7017, 0.69), (RF1, 0.8937, 0.89)):
        verdicts = {j.claim.text: j.verdict for j in ledger.judge(study, paper_frame(study, peak, reach), study.seeds)}
        wrong = [text for text, verdict in verdicts.items() if verdict != "holds"]
        assert wrong == []


def test_claim_fails_if_a_mean_is_three_deviations_off() -> None:
    frame = paper_frame(YEAST, 0.7, 0.69)
    frame.loc[frame["method"] == "UWSO", "macro_f1"] += 3 * 0.014
    verdicts = {j.claim.text[:5]: j.verdict for j in ledger.judge(YEAST, frame, YEAST.seeds)}
    assert verdicts["UWSO:"] == "does not hold"
    entries = [e for e in tables.table_entries(YEAST, frame, YEAST.seeds) if not e.agrees]
    assert [(e.method, e.metric) for e in entries] == [("UWSO", "macro_f1")]


def test_table_has_the_layout_of_the_paper() -> None:
    text = tables.markdown(RF1, tables.table_entries(RF1, paper_frame(RF1, 0.89, 0.88), RF1.seeds), RF1.seeds)
    assert "| method | R² ↑ | RMSE ↓ | MAE ↓ |" in text
    assert "| PCGrad | -0.432 ± 0.000 (-0.432 ± 0.107) | **29.596 ± 0.000** (29.596 ± 0.385) |" in text
    assert text.count("| method |") == 1  # conditions without runs are omitted
    tex = latex.tables(RF1, tables.table_entries(RF1, paper_frame(RF1, 0.89, 0.88), RF1.seeds), RF1.seeds)
    assert r"R$^2$ $\uparrow$ & RMSE $\downarrow$" in tex


def test_saturation_is_the_maximum_over_seeds() -> None:
    frame = paper_frame(YEAST, 0.7017, 0.65)
    frame.loc[frame.index[-1], "reach"] = 0.68
    (row,) = saturation.saturation_rows([YEAST], {"yeast": frame}).to_dict("records")
    assert (row["largest"], row["cap"], row["tasks"]) == (0.7017, 0.68, 14)
    theta = 2 * np.arctanh(0.68)  # 2σ(θ) − 1 = tanh(θ/2)
    sigma = 1 / (1 + np.exp(-theta))
    assert row["derivative_cap"] == pytest.approx(sigma * (1 - sigma))
    assert "| Yeast | 14 | 3 | 0.7017 | 0.7017 | 0.6800 | ≤ 0.69 | 0.127 | 0.134 |" in saturation.markdown(
        saturation.saturation_rows([YEAST], {"yeast": frame})
    )


def test_given_seeds_are_judged_in_addition_to_the_papers() -> None:
    assert default_seed_sets(YEAST, None) == [(42, 43, 44)]
    assert default_seed_sets(YEAST, range(42, 52)) == [(42, 43, 44), tuple(range(42, 52))]
    assert default_seed_sets(YEAST, [7]) == [(7,)]


def test_grid_of_the_tabular_study() -> None:
    cells = list(TABULAR.grid())
    single = [cell for cell in cells if cell.method == SINGLE]
    assert len(METHODS) == 17
    assert len(cells) - len(single) == 17 * 17 * 2 * 10
    assert len(single) == 10 * sum(entry.targets for entry in CATALOGUE.values())
    assert {cell.run.schedule.report for cell in cells} == {"best"}
    graded = [c.run.data.kwargs for c in cells if "×" in c.condition.key]
    assert {(options["scale"], options["pattern"]) for options in graded} == {(1000.0, "graded")}
    quick = list(TABULAR.quick_form().grid())
    assert {cell.run.seed for cell in quick} == {0, 1}
    assert {cell.run.schedule.epochs for cell in quick} == {10}
    with pytest.raises(ValueError, match="has no quick form"):
        YEAST.quick_form()


def test_seeds_and_folds_of_a_data_set_share_batches() -> None:
    """On a GPU, one batch has all methods on losses, one each method on gradients, and one all single tasks."""
    runs = [cell.run for cell in TABULAR.grid(device="cuda") if cell.run.data.name == "slump"]
    sizes = sorted(len(stack.runs) for stack in make_run_batches(runs))
    assert sizes == sorted([8 * 20, *[20] * 9, 3 * 10])
    runs = [cell.run for cell in select_cells(YEAST, YEAST.grid(seeds=range(42, 52), device="cuda"), None, None)]
    assert sorted(len(stack.runs) for stack in make_run_batches(runs)) == [10, 10, 40]


def scores(values: np.ndarray, names: list[str]) -> pd.DataFrame:
    return pd.DataFrame(values, columns=names, index=[f"set{i}" for i in range(len(values))])


def test_ranks_and_critical_differences_equal_published_values() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(14, 4)) + np.array([0.0, 0.1, 1.5, 3.0])
    found = ranks.rank("", scores(values, list("abcd")))
    expected = stats.rankdata(-values, axis=1).mean(0)
    assert [found.ranks[name] for name in "abcd"] == pytest.approx(expected.tolist())
    tied = scores(values.round(), list("abcd"))
    for ranking, table in ((found, values), (ranks.rank("", tied), tied.to_numpy())):
        assert (ranking.chi2, ranking.p) == pytest.approx(tuple(stats.friedmanchisquare(*table.T)))
    equal = ranks.rank("", scores(np.ones((3, 4)), list("abcd")))
    assert (equal.chi2, equal.p) == (0.0, 1.0)
    assert found.difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), rel=1e-3)  # Demšar 2006, §3.2.4: 1.25
    wide = ranks.rank("", scores(generator.normal(size=(20, 10)), list("abcdefghij")))
    assert wide.difference == pytest.approx(3.164 * np.sqrt(10 * 11 / (6 * 20)), rel=1e-3)
    names = list(found.ranks.index)
    for first, last in found.cliques():
        assert found.ranks[last] - found.ranks[first] < found.difference
    for i, j in combinations(range(4), 2):
        joined = any(names.index(a) <= i and j <= names.index(b) for a, b in found.cliques())
        assert joined == (found.ranks.iloc[j] - found.ranks.iloc[i] < found.difference)


def test_cost_of_factors_is_paired_by_data_set() -> None:
    base = np.random.default_rng(0).normal(size=(17, 3))
    before = ranks.rank("plain", scores(base, ["a", "b", "c"]))
    after = ranks.rank("graded", scores(base - [0.0, 0.2, 0.005], ["a", "b", "c"]))
    table = ranks.changes(before, after)
    assert table["lost"].to_dict() == pytest.approx({"a": 0.0, "b": 0.2, "c": 0.005})
    assert table["sets_worse"].to_dict() == {"a": 0, "b": 17, "c": 0}
    assert table.loc["b", "high"] - table.loc["b", "low"] == pytest.approx(0.0, abs=1e-12)
    assert "| b |" in ranks.markdown(ranks.printed_tables([before, after]))


RECORDED = ROOT / "results" / "tabular" / "seventeen" / "runs" / "tabular.csv.xz"


def recorded() -> pd.DataFrame:
    return pd.read_csv(RECORDED, usecols=["method", "condition", "seed", "lr", "macro", "worst"])


@pytest.mark.parametrize("how", ["diverged", "missing"])
def test_method_with_incomplete_folds_is_not_ranked(how: str) -> None:
    frame = recorded()
    groups = frame[frame["method"] == "UWSO"].groupby("condition")["macro"]
    others = (frame["method"] == "UWSO") & ~frame.index.isin(groups.idxmax())
    best_folds = frame.assign(macro=frame["macro"].mask(others)) if how == "diverged" else frame[~others]
    without = ranks.rankings(TABULAR, frame[frame["method"] != "UWSO"])
    found = ranks.rankings(TABULAR, best_folds)
    assert [r.ranks.to_dict() for r in found] == [r.ranks.to_dict() for r in without]
    assert "17 methods on 17 data sets" in ranks.summary(found[0])


def test_ranks_compare_means_over_the_same_folds() -> None:
    frame = recorded()
    removed = (frame["method"] == "BPGS") & (frame["condition"] == "enb") & (frame["seed"] == 3)
    plain, graded = ranks.rankings(TABULAR, frame.assign(macro=frame["macro"].mask(removed)))
    whole = ranks.rank("", ranks.rankings(TABULAR, frame)[0].scores.drop(index="enb"))
    assert plain.ranks.to_dict() == whole.ranks.to_dict()
    assert len(graded.scores) == 17
    incomplete = frame[(frame["condition"] != "enb ×1000") | (frame["seed"] != 3)]  # both tables use the same folds
    assert [len(r.scores) for r in ranks.rankings(TABULAR, incomplete)] == [17, 16]
    assert [len(r.scores) for r in ranks.rankings(TABULAR, frame[frame["seed"] != 3])] == [17, 17]


def test_diverged_single_task_makes_the_mean_missing() -> None:
    class SingleTaskResults:
        def result(self, run: Run) -> dict[str, Any]:
            diverged = run.data.kwargs.get("target") == 1 and run.seed == 1
            return {"chart": {}, "macro": None if diverged else 0.5, "worst": None if diverged else 0.4}

        def history(self, run: Run) -> list[dict[str, Any]]:
            return []

    study = small(TABULAR)
    frame = collect_scores(study, SingleTaskResults())
    alone = frame[frame["method"] == SINGLE]
    assert alone.loc[alone["seed"] == 0, ["macro", "worst"]].to_numpy().tolist() == [[0.5, 0.4]] * 2
    assert alone.loc[alone["seed"] == 1, ["macro", "worst"]].isna().all().all()


def printed(frame: pd.DataFrame, width: int = 80) -> str:
    report = Report([TABULAR], Store(Path()), recorded={"tabular": frame})
    console = Console(record=True, width=width, file=io.StringIO())
    report.show(console)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_does_not_truncate_numbers_of_a_ranking(width: int) -> None:
    frame = recorded()
    text = printed(frame, width)
    assert "…" not in text
    words = text.split()
    for ranking in ranks.rankings(TABULAR, frame):
        for value in (*ranking.scores.to_numpy().flat, *ranking.scores.mean()):
            assert f"{value:.3f}" in words
        for name in ranking.scores.columns:
            assert name in text
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize(
    ("methods", "sets"), [(["Static", "BPGS"], ["enb", "edm"]), (["Static", "BPGS", "UWSO"], ["enb"])]
)
def test_results_that_cannot_be_ranked_are_shown_as_tables(methods: list[str], sets: list[str], tmp_path: Path) -> None:
    frame = recorded()
    frame = frame[frame["method"].isin(methods) & frame["condition"].isin(sets)]
    assert ranks.rankings(TABULAR, frame) == []
    (tmp_path / "runs").mkdir()
    frame.to_csv(tmp_path / "runs" / "tabular.csv", index=False)
    html = write_page(collect_runs([tmp_path]), tmp_path / "out")[0].read_text()
    for _, values in frame.groupby(["method", "condition"])["macro"]:
        cell = f"{values.mean():.3f} ± {values.std():.3f}"
        assert cell in printed(frame)
        assert cell in html


def small(study: Study) -> Study:
    """Return the tabular study on toy tables."""
    conditions = tuple(
        replace(c, problem="toy", targets=3, schedule=(("batch_size", 16),))
        for c in study.conditions[:2] + study.conditions[17:19]
    )
    methods = {name: study.methods[name] for name in ("Static", "UW-O", "Nash-MTL", SINGLE)}
    schedule = replace(study.schedule, epochs=2)
    plain: tuple[Condition, ...] = tuple(replace(c, only=tuple(methods)[:3]) if c.only else c for c in conditions)
    return replace(
        study, conditions=plain, methods=methods, schedule=schedule, seeds=(0, 1), ten_seeds=(0, 1), claims=()
    )


def test_tabular_study_writes_ranks_and_diagrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path / "data", monkeypatch, rows=(60,))
    study, store = small(TABULAR), Store(tmp_path)
    for stack in make_run_batches(cell.run for cell in study.grid()):
        execute(stack, tmp_path)
    frame = collect_scores(study, store)
    alone = frame[frame["method"] == SINGLE]
    assert len(alone) == 2 * 2  # conditions × folds; the tasks of each share one row
    assert len(frame) == 4 * 2 * 3 + 4
    written = {path.name for path in Report([study], store).write(tmp_path / "report")}
    assert {"tabular-ranks.md", "tabular-ranks.csv", "tabular-ranks.png", "tabular-graded.png"} <= written
    text = (tmp_path / "report" / "tables" / "tabular-ranks.md").read_text()
    assert "4 methods on 2 data sets" in text
    assert "Loss of score under graded factors" in text


def test_study_of_the_paper_writes_training_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path / "data", monkeypatch)
    conditions = tuple(replace(c, problem="toy", model=None) for c in RF1.conditions[:2])
    schedule = replace(RF1.schedule, epochs=3, batch_size=16)
    model = replace(RF1.model, options=(("depth", 1), ("trunk", "residual"), ("width", 8)))
    study = replace(RF1, conditions=conditions, schedule=schedule, model=model)
    for stack in make_run_batches((cell.run for cell in study.grid(seeds=[42, 43])), largest=20):
        execute(stack, tmp_path)
    report = Report([study], Store(tmp_path), seeds=[42, 43])
    written = {path.name for path in report.write(tmp_path / "report")}
    assert {"rf1-authors.png", "rf1-raw-targets.pdf", "saturation.md", "ledger.md"} <= written
    assert set(report.frames["rf1"]["condition"]) == {"authors", "raw targets"}
    assert report.frames["rf1"][["r2", "rmse", "mae"]].notna().all().all()


def test_missing_data_are_reported_before_training(tmp_path: Path) -> None:
    arguments = ["reproduce", "yeast", "--out", str(tmp_path / "runs"), "--data", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "yeast-train.arff" in result.output
    assert not (tmp_path / "runs").exists()
    result = CliRunner().invoke(app, ["reproduce", "yeast", "--quick"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "no quick form" in result.output
