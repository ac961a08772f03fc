"""Tables and figures of comparisons: runs that diverged, ranks, differences and intervals."""

from collections.abc import Mapping, Sequence
from math import nan

import pandas as pd
import pytest

from counterpoise.lab.engine import recipe
from counterpoise.lab.engine.function_trainer import FUNCTION
from counterpoise.lab.report import comparison, tables
from counterpoise.lab.report.figures import comparison as comparison_figures
from counterpoise.lab.report.figures.spec import Points
from counterpoise.lab.report.ranks import PrintedTable
from counterpoise.lab.studies import Condition, Study

METRICS = ("error ↓", "hits ↑")
Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Metric → method → score at each seed."""


def make_study(scores: Scores) -> tuple[Study, pd.DataFrame]:
    """Return a comparison and its runs."""
    first = next(iter(scores.values()))
    seeds = tuple(range(len(next(iter(first.values())))))
    study = Study(
        name="own",
        title="own",
        question="",
        problem=FUNCTION,
        conditions=(Condition("main", ()),),
        methods={method: recipe(method) for method in first},
        seeds=seeds,
        metrics=tuple(scores),
        layout="comparison",
        paper_seeds_only=True,
    )
    rows = [
        {"method": method, "condition": "main", "seed": seed, "lr": nan, "macro": nan}
        | {metric: scores[metric][method][seed] for metric in scores}
        for method in first
        for seed in seeds
    ]
    return study, pd.DataFrame(rows)


def printed(study: Study, frame: pd.DataFrame) -> dict[str, PrintedTable]:
    return {table.title: table for table in comparison.printed_tables(study, frame)}


def score_table(study: Study, frame: pd.DataFrame) -> str:
    return tables.markdown(study, tables.table_entries(study, frame, study.seeds), study.seeds)


@pytest.fixture
def diverged() -> tuple[Study, pd.DataFrame]:
    """A comparison in which BPGS has the best mean error only because it diverged at four of five seeds."""
    errors = {
        "static": [10.0, 11, 12, 13, 14],
        "bpgs": [11.0, nan, nan, nan, nan],
        "uw-o": [11.0, 12, 13, 14, 15],
    }
    hits = {"static": [5.0, 5, 5, 5, 5], "bpgs": [4.0, 4, 4, 4, 4], "uw-o": [6.0, 6, 6, 6, 6]}
    return make_study({"error ↓": errors, "hits ↑": hits})


def test_a_mean_over_fewer_seeds_is_not_the_best(diverged: tuple[Study, pd.DataFrame]) -> None:
    text = score_table(*diverged)
    assert "| bpgs | 11.000 (1 of 5 seeds) | 4.000 ± 0.000 |" in text
    assert "| static | **12.000 ± 1.581** | <ins>5.000 ± 0.000</ins> |" in text


def test_a_seed_at_which_all_methods_diverged_counts_for_none() -> None:
    study, frame = make_study({"error ↓": {name: [1.0 + i, 2.0 + i, nan] for i, name in enumerate("abc")}})
    assert "| a | **1.500 ± 0.707 (2 of 3 seeds)** |" in score_table(study, frame)
    (ranking,) = comparison.rankings(study, frame)
    assert list(ranking.ranks) == [1, 2, 3]
    assert printed(study, frame)["Runs that diverged"].rows == [[name, "seed 2"] for name in "abc"]


def test_diverged_runs_and_what_they_are_left_out_of_are_named(diverged: tuple[Study, pd.DataFrame]) -> None:
    table = printed(*diverged)["Runs that diverged"]
    assert table.heads == ["method", "error ↓"]
    assert table.rows == [["bpgs", "seeds 1, 2, 3, 4"]]
    assert table.note == "error ↓ is not ranked, because fewer than three methods finished at the same seeds"
    assert [ranking.part for ranking in comparison.rankings(*diverged)] == ["hits ↑"]


def test_a_method_that_diverged_is_ranked_last_and_has_no_mean_rank() -> None:
    errors = {"a": [1.0, nan, 1.0], "b": [2.0, 2, 2], "c": [3.0, 3, 3], "d": [4.0, 4, 4]}
    hits = {"a": [9.0, 9, 9], "b": [2.0, 2, 2], "c": [3.0, 3, 3], "d": [4.0, 4, 4]}
    found = printed(*make_study({"error ↓": errors, "hits ↑": hits}))
    assert found["Runs that diverged"].note == "error ↓ is ranked without a"
    ranks = found["Average rank over seeds"]
    assert ranks.heads == ["method", *METRICS, "mean"]
    assert ranks.rows[-1] == ["a", "–", "1.00", "–"]
    assert ranks.rows[0] == ["b", "1.00", "4.00", "2.50"]


def test_more_than_ten_diverged_seeds_are_counted() -> None:
    scores = {"a": [1.0, nan] * 12, "b": [1.0] * 24}
    assert printed(*make_study({"error ↓": scores}))["Runs that diverged"].rows == [["a", "12 seeds"]]


def test_differences_show_their_seeds_and_no_interval_of_one_or_two(diverged: tuple[Study, pd.DataFrame]) -> None:
    found = comparison.differences(*diverged).set_index(["metric", "method"])
    assert found.loc[("error ↓", "bpgs"), "seeds"] == 1
    assert found.loc[("error ↓", "bpgs"), ["low", "high"]].isna().all()
    table = printed(*diverged)["Difference to static at the same 5 seeds [95 % interval]"]
    assert table.rows[0] == ["bpgs", "1.000 (1 of 5 seeds)", "−1.000 [−1.000, −1.000]"]
    one = printed(*make_study({"error ↓": {"static": [1.0], "bpgs": [3.0]}}))
    assert one["Difference to static at the same seed"].rows == [["bpgs", "2.000"]]
    two = printed(*make_study({"error ↓": {"static": [1.0, 2.0], "bpgs": [3.0, 4.1]}}))
    assert two["Difference to static at the same 2 seeds"].rows == [["bpgs", "2.050"]]


def test_a_comparison_without_divergence_has_no_such_table() -> None:
    study, frame = make_study({"error ↓": {"static": [1.0, 2.0], "bpgs": [3.0, 3.0]}})
    assert list(printed(study, frame)) == ["Difference to static at the same 2 seeds"]


def test_the_figure_counts_the_seeds_of_an_incomplete_mean(diverged: tuple[Study, pd.DataFrame]) -> None:
    panel = comparison_figures.scores(*diverged).panels[0]
    assert panel.y.ticks is not None
    assert [label for _, label in panel.y.ticks] == ["static", "bpgs (1 of 5)", "uw-o"]
    means = [mark for mark in panel.marks if isinstance(mark, Points) and mark.hover_texts]
    assert [mark.low is None for mark in means] == [False, True, False]
