"""The answers of the leaderboard follow from its numbers, and name methods by code that builds them."""

from collections.abc import Mapping, Sequence

import pandas as pd
from helpers.study_scores import SEEDS, noisy_errors, study_frame, table_score

import counterpoise as cp
from counterpoise.lab.data.qm9 import TARGETS
from counterpoise.lab.metrics.dense import PAPER_DELTA
from counterpoise.lab.report.leaderboard import WorldStandings, leaderboard
from counterpoise.lab.report.leaderboard_answers import answers
from counterpoise.lab.report.leaderboard_cost import step_costs
from counterpoise.lab.report.leaderboard_page import head_to_head_table
from counterpoise.lab.report.leaderboard_text import (
    collapsed_methods,
    keep_together,
    pinn_methods,
    pinn_steps,
    usage,
    worse_problems,
)
from counterpoise.lab.report.leaderboard_worlds import recipes
from counterpoise.lab.studies import STUDIES


def test_answers_follow_the_numbers(board: dict[str, WorldStandings], physics: WorldStandings) -> None:
    costs = step_costs({})
    units, pinn, similar, against = answers([*board.values(), physics], costs)
    assert (units.short, units.code) == ("BPGS.", ("cp.BPGS(tasks)",))
    assert units.note.startswith("It is not shown to be worse than the hand-tuned sum, whose weights undo the units. ")
    assert "Do not use BPGS if a loss can be driven to zero. Standardise regression targets first" in units.note
    assert units.text.startswith("One backward pass. BPGS against the hand-tuned sum: ")
    assert "BPGS fails on physics-informed networks." in units.text
    assert pinn.short == "LRA, or DCGD (one backward pass per loss)."
    assert pinn.code == ('cp.LRA(tasks, reference="residual")', 'cp.DCGD(tasks, residual="residual")')
    assert pinn.note == (
        "Against the plain sum, LRA: error 10 × lower; DCGD: error 20 × lower. Against the sum with a "
        "tuned factor on the conditions, LRA: error lower on 1 equation; DCGD: error lower on 1 equation. "
        "BPGS on losses fails. "
        "LRA and DCGD can fail, too, if a constant solves the residual (advection): use the plain sum there."
    )
    assert pinn.text.startswith("Against the plain sum, LRA: error 10 × lower; DCGD: error 20 × lower.")
    assert pinn_steps(physics.world) in physics.world.situation
    assert "Avoid BPGS on losses: errors more than 5 times those of the plain sum" in pinn.text
    assert similar.short == "The plain sum."
    assert similar.note.startswith("Of 2 methods, only BPGS (+9.9 %) and")
    assert (against.question, against.short) == ("Does BPGS beat Kendall?", "Yes in 2 of 2 worlds.")
    assert against.note == "Better on Tabular data and Rescaled tabular data."
    assert against.text.startswith("Better on Tabular data (")
    worse = study_frame(
        "tabular", {"Static": 0, "BPGS": 0}, lambda m, c, s: table_score("Static", c, s) - (m == "BPGS") / 9
    )
    found = answers(leaderboard({"tabular": worse}), costs)
    assert [answer.short for answer in found[:2]] == ["Weights that undo the units, set by hand.", "The plain sum."]
    assert found[0].note.startswith("No method reaches the hand-tuned sum. The plain sum scores −")
    assert "BPGS scores detectably lower." in found[1].note


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
    assert pinn.short == "Nash-MTL (one backward pass per loss); cheaper: LRA.", "the better one comes first"
    assert "Nash-MTL: error 9.3 × lower (2.0 × to 20 × on single equations); LRA: error 4.1 × lower, but" in pinn.note
    assert "LRA: error lower on 2 of 3 equations, higher on 1." in pinn.note
    assert pinn.calls == ()
    assert "], from 2.0 × lower (Burgers equation) to 20 × lower (" in pinn.text
    assert "Nash-MTL against LRA: error 2.3 × lower [" in pinn.text
    assert "Burgers equation: LRA is worse than the plain sum, error 50 % higher [" in pinn.text
    tuned = {name: found | {"Sum ×10": 0.008} for name, found in errors.items()}
    (standings,) = leaderboard({name: noisy_errors(name, found) for name, found in tuned.items()})
    (pinn, *_) = answers([standings], costs)
    assert pinn.short == "Nash-MTL (one backward pass per loss); cheaper: a tuned factor, or LRA."
    assert pinn.code[1].startswith("cp.Static(")
    assert "Nash-MTL: error lower on 2 of 3 equations, higher on 1; LRA: error lower on none of 3" in pinn.note
    assert "Without the Klein-Gordon equation, against the hand-tuned sum, Nash-MTL: error" in pinn.text
    slow = errors["pinn-helmholtz"] | {"Nash-MTL": 0.05, "CAGrad": 0.05}
    (standings,) = leaderboard({"pinn-helmholtz": noisy_errors("pinn-helmholtz", slow)})
    assert [s.method for s in pinn_methods(standings, costs)] == ["LRA"], "the others are shown to be worse"


def penalised_frames(short: Mapping[str, float], long: Mapping[str, float]) -> dict[str, pd.DataFrame]:
    """Return runs with the given scores, after few and many epochs."""

    def frame(study: str, values: Mapping[str, float]) -> pd.DataFrame:
        return study_frame(study, values, lambda m, c, s: values[m] * (1 - values[m] * s / 999), range(42, 52))

    return {study: frame(study, values) for study, values in (("penalties", short), ("penalties-long", long)) if values}


def test_methods_that_are_worse_in_no_world_are_recommended_where_the_case_is_unknown() -> None:
    """BPGS is worse than the plain sum in physics, Nash-MTL has the best rank, and PCGrad was run in two worlds."""
    scores = {"Static": 0.5, "Gradient normalisation": 0.6, "Nash-MTL": 0.7, "BPGS": 0.65, "PCGrad": 0.4}
    synthetic = {"Sum": 0.5, "Gradient normalisation": 0.6, "Nash-MTL": 0.7, "BPGS": 0.65}
    errors = {"Sum": 0.1, "Gradient normalisation": 0.05, "Nash-MTL": 0.01, "BPGS": 0.9}

    def noisy(study: str, values: dict[str, float], seeds: Sequence[int]) -> pd.DataFrame:
        return study_frame(study, values, lambda m, c, s: score(m, c, values[m]) * (1 + values[m] * s / 999), seeds)

    def score(method: str, condition: str, value: float) -> float:
        return 0.4 if (method, condition) == ("Gradient normalisation", "enb") else value

    frames = {
        "tabular": noisy("tabular", scores, SEEDS),
        "beyond-rescaling": noisy("beyond-rescaling", synthetic, range(42, 49)),
        "pinn-helmholtz": noisy_errors("pinn-helmholtz", errors),
    }
    board, costs = leaderboard(frames), step_costs({})
    assert len(board) == 4
    answer = next(a for a in answers(board, costs) if a.question == "I do not know which applies.")
    assert answer.short == "Nash-MTL (one backward pass per loss); cheaper: Gradient normalisation."
    assert answer.code == ("cp.NashMTL(tasks)", "cp.GradNormalise(tasks)")
    assert answer.methods == ("Nash-MTL", "Gradient normalisation")
    assert answer.text.startswith(
        "3 methods were ranked in at least 3 of 4 worlds. 2 of them are not detectably worse than the plain sum in any"
    )
    # The errors of Gradient normalisation are half of those of the sum at each seed, so that there is no interval.
    assert "rank first: Nash-MTL (better in 4 of 4) and Gradient normalisation (better in 3 of 4)." in answer.text
    assert "Worse in some worlds: BPGS (Physics)." in answer.text
    assert "Gradient normalisation is worse on enb in Tabular data (−" in answer.note
    assert "On single problems Gradient normalisation is worse: enb in Tabular data (−" in answer.text
    assert "in some steps one per loss" in answer.text
    assert not any("know" in a.question for a in answers(board[:3], costs)), "three worlds are too few"
    penalised = leaderboard(frames | penalised_frames({"Sum": 0.6, "Nash-MTL": 0.3, "Gradient normalisation": 0.2}, {}))
    with_penalties = next(a for a in answers(penalised, costs) if a.question == answer.question)
    assert with_penalties.short == answer.short
    assert "in which it was run, except in Penalties: such a term needs a fixed weight." in with_penalties.note


def test_methods_for_different_units_are_checked_on_qm9() -> None:
    tables = study_frame(
        "tabular", {"Static": 0, "FAMO": 0, "First loss": 0}, lambda m, c, s: table_score("BPGS", c, s)
    )
    errors = {"Sum": 1.0, "FAMO": 0.5, "First loss": 1.1}
    rows = [
        {"method": m, "condition": "main", "seed": s} | {f"mae_{t}": e * (1 + e * s / 99) for t in TARGETS}
        for m, e in errors.items()
        for s in (42, 43, 44)
    ]
    board = leaderboard({"tabular": tables, "qm9": pd.DataFrame(rows)})
    units = answers(board, step_costs({}))[0]
    assert units.short == "FAMO."
    assert "First loss is as good, but not shown to be better than the plain sum on QM9 (molecules)." in units.note
    assert (
        "On QM9, where the targets are standardised, FAMO is better than the plain sum; First loss is not shown to be."
        in (units.text)
    )
    without = answers(board[:2], step_costs({}))[0]
    assert sorted(without.methods) == ["FAMO", "First loss"]
    assert "QM9" not in without.note + without.text


def test_answer_on_penalties_names_the_methods_that_other_answers_recommend() -> None:
    short = {"Sum": 0.6, "Kendall": 0.6, "CAGrad": 0.5, "BPGS": 0.01, "Nash-MTL": 0.2, "DWA": 0.7}
    (standings,) = leaderboard(penalised_frames(short, {"Sum": 0.6, "Kendall": 0.3, "DWA": 0.6}))
    assert standings.seeds == tuple(range(45, 52)), "the first three choose the learning rate"
    (answer, *_) = answers([standings], step_costs({}))
    assert (answer.short, answer.code) == (
        "A fixed weight for this term.",
        ('cp.Static(tasks, fixed={"kl": beta})', 'cp.FirstLoss(tasks, fixed={"kl": beta})'),
    )
    assert answer.note == (
        "3 of 5 methods are worse than the plain sum (Nash-MTL: −66.0 % and BPGS: −98.3 %; −100 % is a solution that "
        "ignores the input), and Kendall after 300 epochs. Of the methods with one backward pass, DWA is not shown to "
        "be worse."
    )
    assert "Not detectably worse than the plain sum: DWA." in answer.text
    assert collapsed_methods(standings) == ["BPGS", "Nash-MTL"]


def test_cost_says_where_gradients_are_compared() -> None:
    frames = {"pinn-helmholtz": noisy_errors("pinn-helmholtz", {"Sum": 0.1, "Nash-MTL": 0.01})}
    cost = answers(leaderboard(frames), step_costs({}))[-1]
    assert cost.question == "What does Nash-MTL cost?"
    assert cost.note.startswith("With three tasks of a SegNet, a step takes 2.20 × as long as a plain step")
    assert cost.text == "The recorded runs compare gradients on all shared parameters."


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
    assert "NYUv2 (unequal clips)" in against.note
    assert "unequal clips)" in against.text
    table = head_to_head_table([standings], "BPGS", "Kendall")
    assert table
    assert table.rows[0][-2:] == ["3", "unequal clips"]


def test_usage_is_code_that_builds_the_method() -> None:
    for name, recipe in recipes().items():
        code = usage(recipe)
        if code:
            assert isinstance(eval(code, {"cp": cp, "tasks": ["residual", "boundary"]}), cp.Balancer), name
    assert usage(recipes()["LRA (mean/mean)"]) == 'cp.LRA(tasks, reference="residual", form="mean-mean")'
    assert usage(recipes()["BPGS + CAGrad"]).endswith("weighting=cp.BPGS(tasks))")


def test_lines_do_not_break_within_intervals_or_before_units() -> None:
    text = "error 17 × lower [15, 19], and +3.0 % [+0.9, +5.5] of [all methods of the library]"
    parts = "error 17|× lower [15,|19], and +3.0|% [+0.9,|+5.5] of [all methods of the library]"
    assert keep_together(text) == parts.replace("|", "\N{NO-BREAK SPACE}")
