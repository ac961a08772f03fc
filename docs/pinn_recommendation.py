"""The recommendation for physics-informed networks, the same on all pages, from the recorded results."""

import json

from pinn_findings import (
    EQUATIONS,
    PLATE,
    authors_plate,
    better_on_the_authors_plate,
    equations,
    safe_methods,
    with_errors,
)
from pinns_table import RECORD, STEPS
from recorded_leaderboard import compared, recorded_board, recorded_costs

from counterpoise.lab.report.leaderboard import Standing
from counterpoise.lab.report.leaderboard_answers import TUNED
from counterpoise.lab.report.leaderboard_text import (
    against_tuned_sum,
    better_first,
    format_estimate,
    is_behind_tuned_sum,
    join,
    pinn_methods,
    pinn_steps,
    usage,
    worse_problems,
)
from counterpoise.lab.report.leaderboard_worlds import recipes


def chosen() -> list[Standing]:
    """Return the recommended methods: the cheap one, then that with one backward pass per loss."""
    return pinn_methods(recorded_board()["physics"], recorded_costs())


def without_interval(method: str, problem: str = "") -> str:
    """Return a method relative to the plain sum on an equation, or on all."""
    standings = recorded_board()["physics"]
    return format_estimate(standings.world, standings.compare(method, problem=problem)).split(" [")[0]


def pinn_gains() -> str:
    """Compare the recommended methods for a PINN, and CAGrad, with the plain sum and with each other."""
    names = list(dict.fromkeys([*(s.method for s in chosen()), "CAGrad"]))
    gains = [f"{method} ({compared('physics', method)})" for method in names]
    best, other = names[-2:]
    return f"{join(gains, 'and')}. {best} against {other}: {compared('physics', best, other)}."


def exceptions() -> list[str]:
    """Return where a recommended method is worse than the plain sum: "on Burgers LRA has an error 1.5 × higher"."""
    standings = recorded_board()["physics"]
    found = [(s.method, problem) for s in chosen() for problem in worse_problems(standings, s.method)]
    return [
        f"on {equations([problem])} {method} has an {without_interval(method, problem)}" for method, problem in found
    ]


def short_training() -> str:
    """Compare the cheap method with LRA after few steps, by the smallest and the largest error over seeds."""
    table = json.loads(RECORD.read_text(encoding="utf-8"))["table"]
    errors = {}
    for name in ("LRA", chosen()[0].method):
        code = usage(recipes()[name]).replace('tasks, reference="residual"', "").replace("tasks, ", "")
        errors[name] = sorted(row[0] for row in table[f"`{code.replace('()', '')}`"])
    parts = [f"{found[0]:.2f} to {found[-1]:.2f} with {name}" for name, found in errors.items()]
    return f"after {STEPS:,} steps on Helmholtz the error is {join(parts, 'and')}"


def pinn_row() -> tuple[str, str, str]:
    """Return the recommendation for physics-informed networks: the losses, the methods, and the numbers."""
    standings, notes = recorded_board()["physics"], {"each": "¹", "some": "²", "one": ""}
    methods = [s.method for s in better_first(standings, chosen())]
    code = {method: f"`{usage(recipes()[method])}`".replace("tasks", "…") for method in methods}
    use = join([f"{code[method]}{notes[recorded_costs()[method].passes]}" for method in methods])
    worse = {method: equations(worse_problems(standings, method)) for method in methods}
    gains = [f"{m}: {without_interval(m)}{f', but worse on {worse[m]}' if worse[m] else ''}" for m in methods]
    tuned = [f"{m}: {against_tuned_sum(standings, m)}" for m in methods]
    why = f"{'; '.join(gains)}. Against a tuned factor, {'; '.join(tuned)}"
    why += f". BPGS on losses: {without_interval('BPGS')}"
    if is_behind_tuned_sum(standings, methods[-1]):
        use = use.replace(" or ", f", a tuned factor (`{TUNED.replace('tasks', '…')}`) or ")
    losses = "are the residual and boundary terms of a PINN, trained for many thousand steps"
    few = f"For few steps (measured on Helmholtz alone): `{usage(recipes()['LRA']).replace('tasks', '…')}`"
    fails = (
        f"{join(methods, 'and')} can fail, too, if a constant solves the residual (advection): use `cp.Static` there"
    )
    return losses, use, f"{why}. {fails}. {few}"


def on_the_authors_plate() -> str:
    """Compare the methods of the first table with the plain sum, for the losses of the authors' code of the plate."""
    _, errors = authors_plate()
    lower = better_on_the_authors_plate()
    shown = [label for label in (*(s.method for s in chosen()), "LRA") if label not in lower]
    parts = [join([f"{label} ({errors[label]:.2f})" for label in labels], "and") for labels in (lower, shown)]
    return (
        f"the plain sum has the error {errors['Sum']:.2f}; of {len(errors) - 1} other methods only {parts[0]} is "
        f"better, and {parts[1]} are worse"
    )


def pinn_table() -> str:
    """Return the first table of pinns.md: what to use for a physics-informed network."""
    standings = recorded_board()["physics"]
    cheap, *rest = (usage(recipes()[s.method]) for s in chosen())
    rows = [("a factor for each condition that works", '`cp.Static(tasks, weights={"residual": 1, "boundary": 100})`')]
    rows += [("no factor yet, and many thousand steps", f"`{cheap}`")]
    rows += [("few steps (measured on Helmholtz alone)", f"`{usage(recipes()['LRA'])}`")]
    rows += [("time for one backward pass per term in every step", f"`{code}`") for code in rest]
    rows += [("a second stage with L-BFGS", "`balancer.frozen()`, the last weights of the first stage")]
    lines = ["| you have | use |", "| --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    gains = [f"{s.method}: {compared('physics', s.method)}" for s in chosen()]
    text = f"Against the plain sum on {equations(EQUATIONS)} ({len(standings.seeds)} seeds), {join(gains, 'and')}. "
    text += f"BPGS: {compared('physics', 'BPGS')}."
    if exceptions():
        text += f" But {join(exceptions(), 'and')} than the plain sum."
    text += f" These are trainings of {pinn_steps(standings.world)} steps; {short_training()}"
    text += " ([measurements](#measurements))."
    safe = join(safe_methods(), "and") or "none"
    text += (
        f" Of the methods with one backward pass, {safe} is shown to be better than the plain sum on each equation. "
        "On the [Kirchhoff plate](#the-plate), whose residual has the smallest gradient of all terms, LRA fails, and "
        f"so do larger factors on the conditions: {with_errors(('LRA', 'Sum', 'Sum ×10'), PLATE)}. If the same "
        f"residual is multiplied by a large constant, {on_the_authors_plate()}. The gradient norms before training do "
        "not predict this: train with the plain sum first, and compare on held-out points. If a constant solves the "
        "residual and the boundary condition, as for [advection](recipes.md#an-equation-that-a-constant-solves), "
        f"{join([s.method for s in chosen()], 'and')} can lose the initial condition, which the plain sum keeps."
    )
    return "\n".join([*lines, "", text])
