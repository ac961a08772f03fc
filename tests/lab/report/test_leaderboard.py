"""The leaderboard: ranks, comparisons with the plain and the hand-tuned sum, names of methods, and costs."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.paths import ROOT
from helpers.study_scores import SEEDS, noisy_errors, study_frame, table_score

from counterpoise.lab.report.leaderboard import WorldStandings, at_chosen_rates, leaderboard
from counterpoise.lab.report.leaderboard_cost import step_costs, step_times
from counterpoise.lab.report.leaderboard_text import format_estimate, verdict
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, WORLDS, method_labels, recipes
from counterpoise.lab.studies import STUDIES


def test_ranks_and_relative_scores_are_paired(board: dict[str, WorldStandings]) -> None:
    assert list(board) == ["tables", "tables-rescaled"]
    plain = board["tables"]
    assert [standing.method for standing in plain.standings] == ["BPGS", "Kendall", PLAIN_SUM]
    assert [standing.rank.value for standing in plain.ranked if standing.rank] == [1.0, 2.0, 3.0]
    best = plain.standings[0]
    mean = 0.001 * np.mean(SEEDS)
    assert best.against_sum is not None
    assert best.against_sum.value == pytest.approx(100 * (0.05 / (0.50 + mean)))
    assert best.against_sum.low < best.against_sum.value < best.against_sum.high
    assert verdict(plain.world, best.against_sum) == 1
    assert (best.runs, best.seeds, best.problems, best.diverged) == (170, 10, 17, 0)
    assert best.against_tuned is None


def test_hand_tuned_sum_is_the_plain_sum_without_factors(board: dict[str, WorldStandings]) -> None:
    rescaled = board["tables-rescaled"]
    plain, best = rescaled.find(PLAIN_SUM), rescaled.find("BPGS")
    assert plain
    assert plain.against_tuned
    assert best
    assert best.against_tuned
    assert plain.against_tuned.value == pytest.approx(-50)
    assert best.against_tuned.value == pytest.approx(100 * 0.05 / (0.5 + 0.0045))
    assert best.against_sum is not None
    assert best.against_sum.value > 100


def test_compare_pairs_any_two_methods(board: dict[str, WorldStandings]) -> None:
    estimate = board["tables"].compare("Kendall", "BPGS")
    assert estimate is not None
    assert verdict(board["tables"].world, estimate) == -1
    assert board["tables"].compare("Kendall", "Nash-MTL") is None


def test_missing_runs_have_no_rank_and_diverged_runs_rank_last() -> None:
    frame = study_frame("tabular", {"Static": 0, "Kendall": 0, "BPGS": 0}, table_score)
    frame.loc[(frame["method"] == "BPGS") & (frame["seed"] == 0), "macro"] = float("nan")
    frame = frame[~((frame["method"] == "Kendall") & (frame["seed"] == 1))]
    (standings, _) = leaderboard({"tabular": frame})
    diverged, missing = standings.find("BPGS"), standings.find("Kendall")
    assert diverged
    assert missing
    assert diverged.rank is not None
    assert diverged.rank.value == pytest.approx((2 + 9) / 10)
    assert diverged.diverged == 17
    assert missing.rank is None
    assert missing.against_sum is not None
    assert missing.runs == 17 * 9
    assert standings.standings[-1] is missing


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_one_or_two_seeds_decide_nothing(seeds: int) -> None:
    level = {"Static": 1.0, "BPGS": 2.0}
    frame = study_frame("tabular", level, lambda m, c, s: level[m] + s / 1000, range(seeds))
    standings = leaderboard({"tabular": frame})[0]
    best = standings.find("BPGS")
    assert best
    assert best.against_sum
    assert best.against_sum.value == pytest.approx(100, abs=0.2)
    assert verdict(standings.world, best.against_sum) == (seeds == 3)


def test_intervals_of_ranks_are_possible_ranks() -> None:
    level = {"Static": 0.5, "Kendall": 0.4, "BPGS": 0.6}
    frame = study_frame("tabular", level, lambda m, c, s: level[m] - 0.11 * (m == "BPGS" and s == 2), range(3))
    ranks = {s.method: s.rank for s in leaderboard({"tabular": frame})[0].ranked}
    assert ranks["BPGS"] is not None
    assert ranks["BPGS"].value == pytest.approx(4 / 3)
    assert ranks["BPGS"].low == 1
    assert ranks["BPGS"].high == pytest.approx(4 / 3 + 4.302653 / 3)  # t(0.975, 2) times the standard error


def test_rates_are_chosen_at_seeds_that_are_not_counted() -> None:
    study = STUDIES["beyond-rescaling"]

    def good_at_first(method: str, condition: str, seed: int) -> float:
        return 0.9 if seed < 45 else 0.1

    seeds = range(42, 52)
    first = study_frame(study.name, {"Sum": 0, "BPGS": 0}, good_at_first, seeds, lr=0.001)
    second = study_frame(study.name, {"Sum": 0, "BPGS": 0}, lambda m, c, s: 0.8, seeds, lr=0.01)
    kept = at_chosen_rates(study, pd.concat([first, second]))
    assert set(kept["lr"]) == {0.001}
    assert set(kept["seed"]) == set(range(45, 52))
    fixed = STUDIES["tabular"]
    frame = study_frame("tabular", {"Static": 0}, table_score)
    assert at_chosen_rates(fixed, frame) is frame


def test_other_conditions_take_no_part_in_the_choice_of_rates() -> None:
    errors = {"Sum": 0.1, "LRA": 0.01}
    main = noisy_errors("pinn-burgers", errors)
    other = main.assign(condition="constant rate", lr=0.1, macro=1.0)
    (alone,), (both,) = (leaderboard({"pinn-burgers": frame}) for frame in (main, pd.concat([main, other])))
    assert len(alone.ranked) == 2
    assert both.standings == alone.standings


def test_errors_are_compared_by_their_geometric_mean(physics: WorldStandings) -> None:
    assert physics.seeds == (5, 6, 7, 8)
    lra, tuned, bpgs = (physics.find(name) for name in ("LRA", "Sum ×10", "BPGS"))
    assert lra
    assert tuned
    assert bpgs
    assert lra.against_sum
    assert tuned.against_tuned
    assert bpgs.against_sum
    assert lra.against_sum.value == pytest.approx(10)
    assert tuned.against_tuned.value == pytest.approx(1), "chosen at the seeds of the rates"
    assert bpgs.against_sum.value == pytest.approx(0.1)
    assert format_estimate(physics.world, lra.against_sum) == "error 10 × lower"
    assert format_estimate(physics.world, bpgs.against_sum) == "error 10 × higher"


def test_step_times_are_those_of_the_benchmarks() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "gradient_space_cuda.json").read_text())["rows"]
    found = step_times()
    assert "Nash-MTL" in found.ratios
    for key, times in (("ratio", found.ratios), ("ms", found.milliseconds)):
        measured = {row["case"]: row[key] for row in rows if row["precision"] == "float32"}
        for method, (shared, features) in times.items():
            assert shared == measured.get(f"{method}, loop"), "run python benchmarks/render.py"
            assert features == measured[f"{method}, features"]
    assert found.plain == measured["plain step"]


def test_methods_have_one_name_in_all_studies() -> None:
    names = {name: method_labels(STUDIES[name]) for world in WORLDS for name in world.studies}
    assert names["tabular"]["Static"] == names["beyond-rescaling"]["Sum"] == names["pinn-helmholtz"]["Sum"] == PLAIN_SUM
    assert names["nyuv2"]["UWSO"] == names["beyond-rescaling"]["UWSO"] == names["pinn-helmholtz"]["UW-SO"] == "UW-SO"
    assert names["beyond-rescaling"]["Aligned-MTL"] == names["pinn-helmholtz"]["Aligned-MTL"] == "Aligned-MTL"
    assert names["pinn-helmholtz"]["DCGD + LRA"] == "LRA + DCGD"
    assert names["nyuv2"]["BPGS (clip 1)"] == "BPGS (clip 1)"
    assert "Single-task" not in names["tabular"]
    assert all(len(set(labels.values())) == len(labels) for labels in names.values())


def test_costs_count_passes_and_use_times_that_compare() -> None:
    rows = [("Static", 1.0), ("Kendall", 1.1), ("BPGS", 1.05)]
    frame = pd.DataFrame(
        [{"method": m, "condition": "half", "seed": s, "epoch_seconds": t * (1 + s)} for m, t in rows for s in (0, 1)]
    )
    costs = step_costs({"nyuv2-overhead": frame})
    assert set(costs) == set(recipes())
    assert str(costs["Kendall"]) == "one backward pass; 1.10 × the time"
    assert str(costs["FAMO"]) == "one backward pass, two forward passes"
    assert [costs[name].passes for name in ("BPGS", "LRA", "BPGS (gradient)", "Nash-MTL")] == [
        "one",
        "some",
        "some",
        "each",
    ]
    assert step_costs({})["Kendall"].time is None
