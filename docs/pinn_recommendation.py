"""The recommendation for physics-informed networks, the same on all pages, from the recorded results."""

from itertools import combinations

from recorded_leaderboard import compared, recorded_board, recorded_costs

from counterpoise.lab.report.leaderboard import compare_scores
from counterpoise.lab.report.leaderboard_text import format_estimate, join, pinn_methods, usage, verdict
from counterpoise.lab.report.leaderboard_worlds import recipes


def pinn_gains() -> str:
    """Compare the recommended methods for a PINN, and CAGrad, with the plain sum and with each other."""
    standings = recorded_board()["physics"]
    names = [s.method for s in pinn_methods(standings, recorded_costs())]
    names += [method for method in ("CAGrad",) if method not in names]
    titles = {"LRA (mean/mean)": 'LRA in its form `"mean-mean"`'}
    gains = [f"{titles.get(method, method)} ({compared('physics', method)})" for method in names]
    pairs = [standings.compare(*pair) for pair in combinations(names, 2)]
    undecided = not any(verdict(standings.world, pair) for pair in pairs)
    best, other = names[-2:]
    shared = standings.every[[best, other]].dropna()
    difference = format_estimate(standings.world, compare_scores(standings.world, shared[best], shared[other]))
    problems, seeds = (shared.index.get_level_values(level).nunique() for level in ("problem", "seed"))
    order = f"These {len(standings.seeds)} seeds do not order them. " if undecided else ""
    return (
        f"{join(gains, 'and')}. {order}On {problems} equations with {seeds} seeds, {best} has "
        f"an {difference} than {other}."
    )


def pinn_row() -> tuple[str, str, str]:
    """Return the recommendation for physics-informed networks: the losses, the methods, and the numbers."""
    standings = recorded_board()["physics"]
    chosen = [s.method for s in pinn_methods(standings, recorded_costs())]
    first, *rest = (f"`{usage(recipes()[method])}`".replace("tasks", "…") for method in chosen)
    use = "; ".join([first, *(f"with one backward pass per loss {code}" for code in rest)])
    errors = [f"{m.split(' (')[0]}: {compared('physics', m, interval=False)}" for m in (*chosen, "BPGS")]
    equations, seeds = join(standings.problems, "and"), len(standings.seeds)
    why = f"{', '.join(errors)} on the {equations} ({seeds} seeds"
    undecided = len(chosen) > 1 and not verdict(standings.world, standings.compare(*chosen))
    why += ", which do not order the first two)" if undecided else ")"
    return "are the residual and boundary terms of a PINN", use, why


def pinn_table() -> str:
    """Return the first table of pinns.md: what to use for a physics-informed network."""
    cheap, *rest = (usage(recipes()[s.method]) for s in pinn_methods(recorded_board()["physics"], recorded_costs()))
    rows = [("a factor for each condition that works", '`cp.Static(tasks, weights={"boundary": 100})`')]
    rows += [("no factor yet", f"`{cheap}`")]
    rows += [("time for one backward pass per term in every step", f"`{code}`") for code in rest]
    rows += [("a second stage with L-BFGS", "`balancer.frozen()`, the last weights of the first stage")]
    lines = ["| you have | use |", "| --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", f"Against the plain sum, {pinn_row()[2]}."])
