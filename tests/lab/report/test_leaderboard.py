"""The leaderboard: ranks, comparisons with the plain and the hand-tuned sum, costs, answers, and the page."""

import io
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.browser import Open, overflow
from helpers.empty_figures import write_empty_figures
from helpers.paths import ROOT

import counterpoise as cp
from counterpoise.lab.data.qm9 import TARGETS
from counterpoise.lab.metrics.dense import PAPER_DELTA
from counterpoise.lab.report import collect_runs, write_page
from counterpoise.lab.report.card_pictures import card_picture
from counterpoise.lab.report.figures.leaderboard import frontier
from counterpoise.lab.report.figures.spec import Points, TextLabel
from counterpoise.lab.report.leaderboard import WorldStandings, at_chosen_rates, leaderboard
from counterpoise.lab.report.leaderboard_cost import step_costs, step_times
from counterpoise.lab.report.leaderboard_page import head_to_head_table, leaderboard_section, methods_table
from counterpoise.lab.report.leaderboard_text import (
    answers,
    format_estimate,
    pinn_methods,
    pinn_steps,
    usage,
    verdict,
    worse_problems,
)
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, WORLDS, method_labels, recipes
from counterpoise.lab.studies import STUDIES

SEEDS = range(10)
Score = Callable[[str, str, int], float]


def study_frame(
    name: str,
    methods: Iterable[str],
    score: Score,
    seeds: Sequence[int] = SEEDS,
    metric: str = "macro",
    lr: float = 0.001,
) -> pd.DataFrame:
    """Return the scores of some methods under the default conditions of a study."""
    study = STUDIES[name]
    conditions = [condition for condition in study.conditions if not condition.opt_in]
    rows = [
        {"method": m, "condition": c.key, "seed": s, "lr": lr, metric: score(m, c.key, s)}
        for m in methods
        for c in conditions
        if not c.only or m in c.only
        for s in seeds
    ]
    return pd.DataFrame(rows).assign(**({} if metric == "macro" else {"macro": lambda f: 1 - f[metric]}))


def table_score(method: str, condition: str, seed: int) -> float:
    """BPGS gains a tenth without factors and is unaffected by them; the plain sum and Kendall lose half by them."""
    base = {"Static": 0.50, "Kendall": 0.52, "BPGS": 0.55}[method] + 0.001 * seed
    return base / 2 if condition.endswith("×1000") and method != "BPGS" else base


@pytest.fixture(scope="module")
def board() -> dict[str, WorldStandings]:
    frames = {"tabular": study_frame("tabular", {"Static": 0, "Kendall": 0, "BPGS": 0}, table_score)}
    return {standings.world.name: standings for standings in leaderboard(frames)}


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


def test_rates_are_chosen_at_seeds_that_are_not_counted() -> None:
    study = STUDIES["beyond-rescaling"]

    def good_at_first(method: str, condition: str, seed: int) -> float:
        return 0.9 if seed < 45 else 0.1

    seeds = range(42, 52)
    first = study_frame(study.name, {"static": 0, "BPGS": 0}, good_at_first, seeds, lr=0.001)
    second = study_frame(study.name, {"static": 0, "BPGS": 0}, lambda m, c, s: 0.8, seeds, lr=0.01)
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


ERRORS = {"Sum": 0.1, "Sum ×10": 0.02, "Sum ×100": 0.05, "LRA": 0.01, "BPGS": 1.0, "DCGD": 0.005}


@pytest.fixture(scope="module")
def physics() -> WorldStandings:
    seeds = range(5, 9)
    name = "pinn-helmholtz"
    shown = study_frame(name, ERRORS, lambda m, c, s: ERRORS[m] * (1 + s / 100), seeds, "rel_l2")
    choice = study_frame(name, ERRORS, lambda m, c, s: ERRORS[m], range(100, 102), "rel_l2")
    (standings,) = leaderboard({name: pd.concat([shown, choice])})
    return standings


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


def test_answers_follow_the_numbers(board: dict[str, WorldStandings], physics: WorldStandings) -> None:
    costs = step_costs({})
    units, pinn, similar, against = answers([*board.values(), physics], costs)
    assert (units.short, units.code) == ("BPGS.", ("cp.BPGS(tasks)",))
    assert units.text.startswith("One backward pass. It does not score detectably lower than the hand-tuned sum")
    assert "the plain sum: −50.0 %)." in units.text
    assert "Do not use BPGS if a loss can be driven to zero: it fails on physics-informed networks." in units.text
    assert pinn.short == "LRA, or DCGD (one backward pass per loss)."
    assert pinn.code == ('cp.LRA(tasks, reference="residual")', 'cp.DCGD(tasks, residual="residual")')
    assert pinn.text.startswith("Against the plain sum, LRA: error 10 × lower; DCGD: error 20 × lower.")
    assert pinn_steps(physics.world) in physics.world.situation
    assert "Avoid BPGS on losses: errors more than 5 times those of the plain sum" in pinn.text
    assert similar.short == "The plain sum."
    assert similar.text.startswith("Of 2 methods, only BPGS (+9.9 %) and")
    assert (against.question, against.short) == ("Does BPGS beat Kendall?", "Yes in 2 of 2 worlds.")
    assert against.text.startswith("Better on Tables (")
    worse = study_frame(
        "tabular", {"Static": 0, "BPGS": 0}, lambda m, c, s: table_score("Static", c, s) - (m == "BPGS") / 9
    )
    found = answers(leaderboard({"tabular": worse}), costs)
    assert [answer.short for answer in found[:2]] == ["Weights that undo the units, set by hand.", "The plain sum."]
    assert "No method reaches the hand-tuned sum" in found[0].text
    assert "BPGS scores detectably lower" in found[1].text


def test_methods_are_described_with_their_settings_and_other_names(physics: WorldStandings) -> None:
    standings = [replace(physics.standings[0], method=name) for name in ("Plain sum", "UW-O", "Kendall (rate 0.001)")]
    table = methods_table([replace(physics, standings=tuple(standings))])
    rate, plain, uwo = (row[1] for row in table.rows)
    assert rate.endswith("; learning rate of its weights: 0.001")
    assert plain.endswith("; called Static or Sum in some tables")
    assert uwo.endswith("; called SI in some tables")


def noisy_errors(name: str, errors: dict[str, float]) -> pd.DataFrame:
    """Return errors of a study that vary with the seed, for each method in another way."""
    noise = (1.0, 1.1, 0.9)
    seeds = (5, 6, 7, 100, 101)
    return study_frame(name, errors, lambda m, c, s: errors[m] * noise[(s + ord(m[0])) % 3], seeds, "rel_l2")


def test_methods_for_pinns_are_chosen_by_mean_rank_over_the_equations() -> None:
    """On Burgers, LRA is worse than the plain sum, and on Helmholtz CAGrad has lower errors than Nash-MTL."""
    errors = {
        "pinn-helmholtz": {"Sum": 0.1, "LRA": 0.01, "GradNorm": 0.02, "CAGrad": 0.004, "Nash-MTL": 0.005},
        "pinn-burgers": {"Sum": 0.1, "LRA": 0.15, "GradNorm": 0.2, "CAGrad": 0.3, "Nash-MTL": 0.05},
        "pinn-klein-gordon": {"Sum": 0.1, "LRA": 0.01, "GradNorm": 0.02, "CAGrad": 0.006, "Nash-MTL": 0.005},
    }
    costs = step_costs({})
    (standings,) = leaderboard({name: noisy_errors(name, found) for name, found in errors.items()})
    assert [s.method for s in pinn_methods(standings, costs)] == ["LRA", "Nash-MTL"]
    assert list(worse_problems(standings, "LRA")) == ["Burgers equation"]
    assert not worse_problems(standings, "Nash-MTL")
    (pinn, *_) = answers([standings], costs)
    assert pinn.short == "Nash-MTL (one backward pass per loss), or LRA.", "the better one comes first"
    assert "Nash-MTL against LRA: error 2.3 × lower [" in pinn.text
    assert "Burgers equation: LRA is worse than the plain sum, error 50 % higher [" in pinn.text
    slow = errors["pinn-helmholtz"] | {"Nash-MTL": 0.05, "CAGrad": 0.05}
    (standings,) = leaderboard({"pinn-helmholtz": noisy_errors("pinn-helmholtz", slow)})
    assert [s.method for s in pinn_methods(standings, costs)] == ["LRA"], "the others are shown to be worse"


def test_methods_that_are_worse_in_no_world_are_recommended_where_the_case_is_unknown() -> None:
    """BPGS is worse than the plain sum in physics, Nash-MTL has the best rank, and PCGrad was run in two worlds."""
    scores = {"Static": 0.5, "Gradient normalisation": 0.6, "Nash-MTL": 0.7, "BPGS": 0.65, "PCGrad": 0.4}
    names = {"Static": "static", "Gradient normalisation": "grad-normalise", "Nash-MTL": "nash-mtl", "BPGS": "BPGS"}
    errors = {"Sum": 0.1, "Gradient normalisation": 0.05, "Nash-MTL": 0.01, "BPGS": 0.9}

    def noisy(study: str, values: dict[str, float], seeds: Sequence[int]) -> pd.DataFrame:
        return study_frame(study, values, lambda m, c, s: score(m, c, values[m]) * (1 + values[m] * s / 999), seeds)

    def score(method: str, condition: str, value: float) -> float:
        return 0.4 if (method, condition) == ("Gradient normalisation", "enb") else value

    frames = {
        "tabular": noisy("tabular", scores, SEEDS),
        "beyond-rescaling": noisy("beyond-rescaling", {n: scores[m] for m, n in names.items()}, range(42, 49)),
        "pinn-helmholtz": noisy_errors("pinn-helmholtz", errors),
    }
    board, costs = leaderboard(frames), step_costs({})
    assert len(board) == 4
    answer = next(a for a in answers(board, costs) if a.question == "I do not know which applies.")
    assert answer.short == "Nash-MTL (one backward pass per loss), or Gradient normalisation."
    assert answer.code == ("cp.NashMTL(tasks)", "cp.GradNormalise(tasks)")
    assert answer.text.startswith(
        "3 methods were run in at least 3 of 4 worlds. In no world are these detectably worse"
    )
    # The errors of Gradient normalisation are half of those of the sum at each seed, so that there is no interval.
    assert "rank: Nash-MTL (better in 4 of 4) and Gradient normalisation (better in 3 of 4)." in answer.text
    assert "Worse in some worlds: BPGS (Physics)." in answer.text
    assert "On single problems Gradient normalisation is worse: enb of Tables (−" in answer.text
    assert "in some steps one per loss" in answer.text
    assert not any("know" in a.question for a in answers(board[:3], costs)), "three worlds are too few"


def test_comparison_with_unequal_settings_says_so() -> None:
    study, scores = STUDIES["nyuv2"], {"Static": 1.0, "Kendall": 0.9, "BPGS": 0.8}
    condition = next(c.key for c in study.conditions if not c.options)
    rows = [
        {"method": m, "condition": condition, "seed": s} | dict.fromkeys(PAPER_DELTA, score * (1 + score * s / 50))
        for m, score in scores.items()
        for s in range(3)
    ]
    (standings,) = leaderboard({"nyuv2": pd.DataFrame(rows)})
    (against,) = answers([standings], step_costs({}))
    assert "unequal clips)" in against.text
    table = head_to_head_table([standings], "BPGS", "Kendall")
    assert table
    assert table.rows[0][-2:] == ["3", "unequal clips"]


def test_the_same_problems_with_adamw_are_a_check_and_no_world() -> None:
    scores = {"static": 0.5, "BPGS": 0.6, "Kendall": 0.55, "UWSO": 0.4}
    adam, adamw = (
        study_frame(name, scores, lambda m, c, s: scores[m] * (1 + s * scores[m] / 99), range(42, 49))
        for name in ("beyond-rescaling", "beyond-rescaling-adamw")
    )
    adamw.loc[adamw["method"] == "UWSO", "macro"] *= 2
    frames = {"beyond-rescaling": adam, "beyond-rescaling-adamw": adamw}
    (standings,) = leaderboard(frames)
    assert [check.world.name for check in standings.checks] == ["synthetic-adamw"]
    (against,) = answers([standings], step_costs({}))
    assert against.short == "Yes in 1 of 1 world."
    assert against.text.startswith("Better on Synthetic stress (+11.1 % [+11.1, +11.2], with AdamW +11.1 %")
    section = leaderboard_section(frames)
    assert len(section.cards) == len(section.figures["leaderboard"].panels) == 1
    assert section.cards[0].checks == {
        "table-synthetic-adamw": "With AdamW, 2 of 3 methods have the same verdict against the plain sum."
    }
    assert [part.anchor for part in section.tables] == ["synthetic", "synthetic-adamw"]
    assert section.head_to_head
    assert [row[-1] for row in section.head_to_head.rows] == ["", "a check, not counted"]
    assert len(pd.read_csv(io.StringIO(section.texts["tables/leaderboard.csv"]))) == 2 * len(scores)


def test_step_times_are_those_of_the_benchmarks() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "gradient_space_cuda.json").read_text())["rows"]
    ratios = {row["case"]: row["ratio"] for row in rows if row["precision"] == "float32"}
    assert "Nash-MTL" in step_times().ratios
    for method, (whole, features) in step_times().ratios.items():
        assert whole == ratios.get(f"{method}, loop"), "run python benchmarks/render.py"
        assert features == ratios[f"{method}, features"]


def test_usage_is_code_that_builds_the_method() -> None:
    for name, recipe in recipes().items():
        code = usage(recipe)
        if code:
            assert isinstance(eval(code, {"cp": cp, "tasks": ["residual", "boundary"]}), cp.Balancer), name
    assert usage(recipes()["LRA (mean/mean)"]) == 'cp.LRA(tasks, reference="residual", form="mean-mean")'
    assert usage(recipes()["BPGS + CAGrad"]).endswith("weighting=cp.BPGS(tasks))")


def test_pictures_show_gains_curves_and_solutions(board: dict[str, WorldStandings]) -> None:
    tables = card_picture(board["tables"], {})
    assert tables.caption == "BPGS against the plain sum on 17 problems"
    assert len(tables.bars) == 17
    assert all(bar.gain and bar.y + bar.height == pytest.approx(tables.zero) for bar in tables.bars)
    study, methods = STUDIES["beyond-rescaling"], {"static": 0, "BPGS": 0, "Kendall": 0}
    frame = study_frame(study.name, methods, lambda m, c, s: 0.9 - 0.1 * (m != "BPGS") * len(c), range(42, 52))
    (synthetic,) = leaderboard({study.name: frame})
    picture = card_picture(synthetic, {})
    assert [curve.label for curve in picture.curves] == ["BPGS", "Kendall", PLAIN_SUM]
    assert {len(curve.points.split()) for curve in picture.curves} == {4}
    places = sorted(curve.label_y for curve in picture.curves)
    assert all(second - first >= 13 for first, second in itertools.pairwise(places))


def test_molecules_appear_with_a_bar_per_property() -> None:
    """The study is not recorded yet."""
    errors = {f"mae_{target}": 0.1 * (1 + place) for place, target in enumerate(TARGETS)}
    methods = {"Sum": 1.0, "BPGS": 0.8, "Kendall": 1.2}
    rows = [
        {"method": m, "condition": "main", "seed": s, "lr": 0.001}
        | {k: f * e * (1 + s * f / 50) for k, e in errors.items()}
        for m, f in methods.items()
        for s in range(3)
    ]
    (standings,) = leaderboard({"qm9": pd.DataFrame(rows)})
    picture = card_picture(standings, {})
    assert (standings.world.name, standings.ranked[0].method) == ("molecules", "BPGS")
    assert picture.caption == "BPGS against the plain sum on 11 metrics"
    assert all(bar.gain for bar in picture.bars)
    (against,) = answers([standings], step_costs({}))
    assert "Better on Molecules (error 34 % lower" in against.text


def test_methods_have_one_name_in_all_studies() -> None:
    names = {name: method_labels(STUDIES[name]) for world in WORLDS for name in world.studies}
    assert (
        names["tabular"]["Static"] == names["beyond-rescaling"]["static"] == names["pinn-helmholtz"]["Sum"] == PLAIN_SUM
    )
    assert names["nyuv2"]["UWSO"] == names["beyond-rescaling"]["UWSO"] == names["pinn-helmholtz"]["UW-SO"] == "UW-SO"
    assert names["beyond-rescaling"]["aligned-mtl"] == names["pinn-helmholtz"]["Aligned-MTL"] == "Aligned-MTL"
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


def test_frontier_uses_times_where_enough_were_measured(board: dict[str, WorldStandings]) -> None:
    (by_passes, _) = frontier(list(board.values()), step_costs({})).panels
    assert by_passes.x.label == "backward passes of a step"
    methods = {"Static": 0.50, "Kendall": 0.6, "BPGS": 0.7, "UWSO": 0.4, "PCGrad": 0.8, "CAGrad": 0.3, "Nash-MTL": 0.9}
    frames = {"tabular": study_frame("tabular", methods, lambda m, c, s: methods[m])}
    costs = {name: replace(cost, time=1 + 0.1 * place) for place, (name, cost) in enumerate(step_costs({}).items())}
    (panel, _) = frontier(leaderboard(frames), costs).panels
    assert panel.x.label == "time of a step, relative to the plain sum"
    (points,) = [mark for mark in panel.marks if isinstance(mark, Points)]
    assert len(points.x) == len(methods)
    named = [mark.text for mark in panel.marks if isinstance(mark, TextLabel)]
    assert "Nash-MTL" in named
    assert "CAGrad" not in named, "a faster method scores higher"


def test_section_is_empty_without_scores_of_a_world() -> None:
    assert leaderboard({}) == []
    assert leaderboard_section({"tabular": study_frame("tabular", {"BPGS": 0}, table_score)}).cards == []


def test_page_opens_with_answers_figures_and_cards(
    tmp_path: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_empty_figures(monkeypatch)
    frame = study_frame("tabular", {"Static": 0, "Kendall": 0, "BPGS": 0}, table_score)
    section = leaderboard_section({"tabular": frame})
    first = section.figures["leaderboard"].panels[0]
    values = [x for mark in first.marks if isinstance(mark, Points) for x in mark.x]
    assert len(values) == 2
    table = pd.read_csv(io.StringIO(section.texts["tables/leaderboard.csv"])).set_index(["world", "method"])
    assert table.loc[("tables", "BPGS"), "against_sum"] == pytest.approx(max(values), rel=1e-4)
    (tmp_path / "runs").mkdir()
    frame.assign(epochs=100).to_csv(tmp_path / "runs" / "tabular.csv", index=False)
    files = write_page(collect_runs([tmp_path]), tmp_path / "page")
    assert {"leaderboard.csv", "head-to-head.csv", "leaderboard.png"} <= {path.name for path in files}
    page = open_page(files[0], width=390)
    assert page.locator("main > section").first.get_attribute("id") == "leaderboard"
    assert page.locator(".answers dt").count() == 3
    assert page.locator(".card").count() == 2
    assert "BPGS" in page.locator("#world-tables-rescaled li").first.inner_text()
    for link in page.locator(".answers a, .card a").all():
        assert page.locator(link.get_attribute("href") or "missing").count() == 1
    runs = page.locator("#table-tables td:last-child a").first.get_attribute("href") or "missing"
    scores = pd.read_csv(files[0].parent / runs)
    assert runs == "runs/leaderboard-tables.csv"
    assert len(scores[scores["method"] == "BPGS"]) == 170
    links = page.locator("a[href*='runs/'], a[href$='.csv']").evaluate_all(
        "all => all.map(a => a.getAttribute('href'))"
    )
    assert all((files[0].parent / link).is_file() for link in links)
    page.locator('.answers a[href="#table-head-to-head"]').click()
    assert page.locator("#table-head-to-head tbody th").first.inner_text() == "Tables"
    assert page.locator("#table-head-to-head").is_visible()
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert overflow(page) == 0
