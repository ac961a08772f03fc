"""Comparisons as text, and the selections of methods that the answers and the documentation share."""

import json
import re
from collections.abc import Mapping, Sequence

import counterpoise as cp

from ..engine import Recipe
from ..studies import STUDIES
from ..studies.pinn import STEPS
from .leaderboard import Estimate, Standing, WorldStandings
from .leaderboard_cost import Cost
from .leaderboard_worlds import PLAIN_SUM, TUNED_SUM, World

FAILING = {"factor": 0.2, "change": -50.0}
"""A method fails if its comparison with the plain sum is shown to be below: five times the error, half the score."""
RESIDUAL = {"lra": "reference", "dcgd": "residual"}
"""Options that name the residual of a physics-informed network. In the studies it is the first loss, as by default."""


def format_estimate(world: World, estimate: Estimate | None) -> str:
    """Format a comparison.

    Examples: "+3.0 % [+0.9, +5.5]", "error 12 × lower [8, 16]", "error 14 × higher [10, 20]", and, where all factors
    are below two, "error 33 % lower [29, 37]".
    """
    if estimate is None:
        return "–"
    if world.unit == "factor":
        return _format_factor(estimate)
    value, low, high = map(format_change, (estimate.value, estimate.low, estimate.high))
    return f"{value} %" if low == high else f"{value} % [{low}, {high}]"


def format_change(percent: float) -> str:
    return f"{round(percent, 1) + 0.0:+.1f}".replace("-", "−")  # not "−0.0"


def keep_together(text: str) -> str:
    """Return a text in which lines do not break within an interval, or between a number and its unit."""
    text = re.sub(r"(?<=\d) (?=[%×])", "\N{NO-BREAK SPACE}", text)
    return re.sub(r"\[[^\]]{1,20}\]", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def without_interval(world: World, estimate: Estimate | None) -> str:
    """Format a comparison without its interval."""
    return format_estimate(world, estimate).split(" [")[0]


def against_tuned_sum(standings: WorldStandings, method: str) -> str:
    """Compare a method with the hand-tuned sum on each equation: "error lower on 1 of 4 equations, higher on 2"."""
    found = [standings.compare(method, TUNED_SUM, problem) for problem in standings.problems]
    signs = [verdict(standings.world, estimate) for estimate in found if estimate is not None]
    lower, higher = signs.count(1), signs.count(-1)
    equations = f"{len(signs)} equation{'s' if len(signs) > 1 else ''}"
    if lower == len(signs):
        return f"error lower on {'all ' if lower > 1 else ''}{equations}"
    return f"error lower on {lower or 'none'} of {equations}" + (f", higher on {higher}" if higher else "")


def is_behind_tuned_sum(standings: WorldStandings, method: str) -> bool:
    """Return whether a method is worse than the hand-tuned sum on more problems than it is better."""
    found = [standings.compare(method, TUNED_SUM, problem) for problem in standings.problems]
    return sum(verdict(standings.world, estimate) for estimate in found) < 0


def _format_factor(estimate: Estimate) -> str:
    lower = estimate.value >= 1
    numbers = [estimate.value, *((estimate.low, estimate.high) if lower else (estimate.high, estimate.low))]
    if all(0.5 < number < 2 for number in numbers):
        value, low, high = (_percent(1 - 1 / number if lower else 1 / number - 1) for number in numbers)
        value += " %"
    else:
        value, low, high = (format_factor(number if lower else 1 / number) for number in numbers)
        value += " ×"
    return f"error {value} {'lower' if lower else 'higher'}" + ("" if low == high else f" [{low}, {high}]")


def _percent(share: float) -> str:
    percent = round(100 * share, 1) + 0.0  # not "-0.0"
    return (f"{percent:.1f}" if abs(percent) < 10 else f"{percent:.0f}").replace("-", "−")


def format_factor(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def verdict(world: World, estimate: Estimate | None) -> int:
    """Return 1 if a method is better, −1 if it is worse, and 0 if the interval does not decide or there is none."""
    neutral = 1.0 if world.unit == "factor" else 0.0
    if estimate is None or estimate.low == estimate.high:
        return 0
    return (estimate.low > neutral) - (estimate.high < neutral)


def join(names: Sequence[str], word: str = "or") -> str:
    """Join names: "a, b or c"."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def usage(recipe: Recipe) -> str:
    """Return how to build a method, e.g. `cp.PCGrad(tasks)`; "" if it is not a method of the library."""
    if recipe.name not in cp.methods():
        return ""
    options = {name: "residual" for method, name in RESIDUAL.items() if method == recipe.name} | recipe.kwargs
    values = {name: json.dumps(value) if isinstance(value, str) else repr(value) for name, value in options.items()}
    arguments = ["tasks", *(f"{name}={value}" for name, value in values.items())]
    if recipe.weighting is not None:
        arguments.append(f"weighting={usage(recipe.weighting)}")
    return f"cp.{cp.describe(recipe.name).build.__name__}({', '.join(arguments)})"


def other_methods(standings: WorldStandings) -> list[Standing]:
    """Return the ranked methods except the plain sum."""
    return [standing for standing in standings.ranked if standing.method != PLAIN_SUM and standing.against_sum]


def by_gain(standing: Standing) -> float:
    """Return a key that sorts methods by their comparison with the plain sum, the best first."""
    return -standing.against_sum.value if standing.against_sum else 0.0


def pinn_methods(standings: WorldStandings, costs: Mapping[str, Cost]) -> list[Standing]:
    """Return the recommended methods for a physics-informed network: the cheap one, then that with a pass per loss.

    Each has the best mean rank of its group over all equations and seeds. The second is left out if it is shown to be
    worse than the first. Sums with fixed weights are left out.
    """
    found = [s for s in other_methods(standings) if not s.method.startswith("Sum")]
    groups = [[s for s in found if (costs[s.method].passes == "each") == each] for each in (False, True)]
    best = [group[0] for group in groups if group]
    worse = len(best) > 1 and verdict(standings.world, standings.compare(best[1].method, best[0].method)) < 0
    return best[:1] if worse else best


def better_first(standings: WorldStandings, methods: Sequence[Standing]) -> list[Standing]:
    """Return two methods with the second one first if it is shown to be better. One method is returned as it is."""
    swap = len(methods) > 1 and verdict(standings.world, standings.compare(methods[1].method, methods[0].method)) > 0
    return list(methods[::-1] if swap else methods)


def pinn_steps(world: World) -> str:
    """Return the number of steps of the runs of physics-informed networks: "20,000 to 50,000"."""
    steps = [STEPS * STUDIES[name].schedule.epochs for name in world.studies]
    return f"{min(steps):,} to {max(steps):,}"


def worse_problems(standings: WorldStandings, method: str) -> dict[str, Estimate]:
    """Return the problems on which a method is shown to be worse than the plain sum, with the comparisons."""
    compared = {problem: standings.compare(method, problem=problem) for problem in standings.problems}
    return {problem: e for problem, e in compared.items() if e is not None and verdict(standings.world, e) < 0}


def single_exceptions(board: Sequence[WorldStandings], method: str) -> list[str]:
    """Return the problems on which a method is shown to be worse than the plain sum, with numbers, the worst last."""
    found = [
        (
            _loss(standings.world, estimate),
            f"{_problem_name(standings, problem)} ({format_estimate(standings.world, estimate)})",
        )
        for standings in board
        for problem, estimate in worse_problems(standings, method).items()
    ]
    return [text for _, text in sorted(found)]


def _loss(world: World, estimate: Estimate) -> float:
    """Return by which share a method is worse: 0.5 for half of the score, or for errors 50 % higher."""
    return 1 / estimate.value - 1 if world.unit == "factor" else -estimate.value / 100


def _problem_name(standings: WorldStandings, problem: str) -> str:
    """Return a problem with its world, if its name does not say it: "oes10 in Tabular data", "the Burgers equation"."""
    study, _, condition = problem.rpartition(": ")
    return f"{condition} in {standings.world.title}" if study else f"the {problem}" if " " in problem else problem


def is_worse(standings: WorldStandings, method: str) -> bool:
    """Return whether a method is shown to be worse than the plain sum in a world or in one of its checks."""
    places = [(part.world, part.find(method)) for part in (standings, *standings.checks)]
    return any(found is not None and verdict(world, found.against_sum) < 0 for world, found in places)


def collapsed_methods(standings: WorldStandings) -> list[str]:
    """Return the methods that fail in a world, the worst first."""
    ranked = sorted(other_methods(standings), key=by_gain)
    return [s.method for s in reversed(ranked) if s.against_sum and s.against_sum.high < FAILING[standings.world.unit]]


def check_name(standings: WorldStandings, check: WorldStandings) -> str:
    """Return the setting of a check: "with AdamW"."""
    return check.world.title.removeprefix(standings.world.title).strip()


def check_finding(standings: WorldStandings, check: WorldStandings) -> str:
    """Say how many methods have the same verdict against the plain sum in a check, and which are worse only there."""
    verdicts = {
        s.method: (verdict(standings.world, found.against_sum), verdict(check.world, s.against_sum))
        for s in other_methods(check)
        if (found := standings.find(s.method))
    }
    same = sum(before == after for before, after in verdicts.values())
    worse = [method for method, (before, after) in verdicts.items() if after < 0 <= before]
    setting = check_name(standings, check)
    count = f"{same} of {len(verdicts)} methods"
    text = f"{setting[0].upper()}{setting[1:]}, {count} have the same verdict against the plain sum"
    return f"{text}; {join(worse, 'and')} {'are' if worse[1:] else 'is'} worse only there." if worse else f"{text}."


def unequal_settings(world: World, method: str, other: str) -> list[str]:
    """Return the settings in which two methods differ besides the method."""
    return [text for name, text in world.unequal.items() if name in (method, other)]
