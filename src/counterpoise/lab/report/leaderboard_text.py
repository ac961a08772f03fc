"""Answers that a practitioner can act on, written by rules from the standings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import counterpoise as cp

from ..engine import Recipe
from ..studies import STUDIES
from ..studies.pinn import STEPS
from .leaderboard import Estimate, Standing, WorldStandings
from .leaderboard_cost import PASSES, Cost, step_times
from .leaderboard_worlds import PLAIN_SUM, World, recipes

OVERVIEW, COST_FIGURE = "figure-leaderboard", "figure-leaderboard-cost"
HEAD_TO_HEAD, STEP_TIMES = "table-head-to-head", "table-step-times"
"""Anchors of numbers on the page."""
EACH = PASSES["each"]
LEAST_WORLDS = 4
"""With fewer worlds, no method is recommended for all of them."""
MAX_NAMES = 4
COLLAPSE = 0.2
"""A method whose errors are more than 1 / COLLAPSE times those of the plain sum is advised against."""
RESIDUAL = {"lra": "reference", "dcgd": "residual"}
"""Options that name the residual of a physics-informed network. In the studies it is the first loss, as by default."""


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words and in full, the anchor of the numbers, and the methods it recommends."""

    question: str
    short: str
    text: str
    anchor: str = ""
    methods: tuple[str, ...] = ()

    @property
    def code(self) -> tuple[str, ...]:
        """How to build the methods."""
        return tuple(filter(None, (usage(recipes()[method]) for method in self.methods)))


PENALTY = Answer(
    "One loss is a KL term or another penalty.",
    "A fixed weight for this term.",
    "Methods that weight losses by their values or by gradient norms drive a term that can vanish to zero, at the "
    "expense of the other losses: for example the KL term of a VAE, or an entropy bonus. The other losses can be "
    'balanced: pass the term as fixed={"kl": 0.01}. No study on this page has such a term; "Choosing a method" in the '
    "documentation has an example.",
)


def format_estimate(world: World, estimate: Estimate | None) -> str:
    """Format a comparison.

    Examples: "+3.0 % [+0.9, +5.5]", "error 12 × lower [8, 16]", "error 14 × higher [10, 20]", and, where all factors
    are below two, "error 33 % lower [29, 37]".
    """
    if estimate is None:
        return "–"
    if world.unit == "factor":
        return _format_factor(estimate)
    numbers = [estimate.value, estimate.low, estimate.high]
    value, low, high = (f"{round(number, 1) + 0.0:+.1f}".replace("-", "−") for number in numbers)
    return f"{value} %" if low == high else f"{value} % [{low}, {high}]"


def _format_factor(estimate: Estimate) -> str:
    lower = estimate.value >= 1
    numbers = [estimate.value, *((estimate.low, estimate.high) if lower else (estimate.high, estimate.low))]
    if all(0.5 < number < 2 for number in numbers):
        value, low, high = (_percent(1 - 1 / number if lower else 1 / number - 1) for number in numbers)
        value += " %"
    else:
        value, low, high = (_factor(number if lower else 1 / number) for number in numbers)
        value += " ×"
    return f"error {value} {'lower' if lower else 'higher'}" + ("" if low == high else f" [{low}, {high}]")


def _percent(share: float) -> str:
    percent = round(100 * share, 1) + 0.0  # not "-0.0"
    return (f"{percent:.1f}" if abs(percent) < 10 else f"{percent:.0f}").replace("-", "−")


def _factor(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def verdict(world: World, estimate: Estimate | None) -> int:
    """Return 1 if a method is better, −1 if it is worse, and 0 if the interval does not decide or is a single seed."""
    neutral = 1.0 if world.unit == "factor" else 0.0
    if estimate is None or estimate.low == estimate.high:
        return 0
    return (estimate.low > neutral) - (estimate.high < neutral)


def answers(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> list[Answer]:
    """Return the answers for which there are runs."""
    found = {standings.world.name: standings for standings in board if _others(standings)}
    physics = found.get("physics")
    written = []
    if "tables-rescaled" in found:
        written.append(_different_units(found["tables-rescaled"], costs, physics, found.get("molecules")))
    if physics:
        written += [_physics(physics, costs), PENALTY]
    if "tables" in found:
        written.append(_similar_scales(found["tables"], costs))
    written += _unknown_case(list(found.values()), costs)
    written += _head_to_head(board, "BPGS", "Kendall")
    written += _cost(board, costs, "Nash-MTL")
    return written


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


def _different_units(
    standings: WorldStandings,
    costs: Mapping[str, Cost],
    physics: WorldStandings | None,
    molecules: WorldStandings | None,
) -> Answer:
    question, world, plain = "My losses have different units.", standings.world, standings.find(PLAIN_SUM)
    as_good = [s for s in _others(standings) if s.against_tuned and verdict(world, s.against_tuned) >= 0]
    cheap = [s for s in as_good if costs[s.method].passes == "one"]
    chosen = sorted(cheap or as_good, key=_gain)[:MAX_NAMES]
    behind = "" if plain is None else f"the plain sum: {format_estimate(world, plain.against_tuned)}"
    anchor = f"table-{world.name}"
    if not chosen:
        text = f"No method reaches the hand-tuned sum{f' ({behind})' if behind else ''}. {_evidence(standings)}"
        return Answer(question, "Weights that undo the units, set by hand.", text, anchor)
    names = [s.method for s in chosen]
    tuned = "; ".join(filter(None, [f"{names[0]}: {format_estimate(world, chosen[0].against_tuned)}", behind]))
    text = (
        f"{_passes(names, costs)}{'None scores' if len(names) > 1 else 'It does not score'} detectably lower than the "
        f"hand-tuned sum, whose weights undo the factors ({tuned}). "
    )
    if len(names) > 1 and not any(verdict(world, standings.compare(*pair)) for pair in combinations(names, 2)):
        text += "The runs do not decide between them. "
    higher = [s for s in sorted(as_good, key=_gain) if s not in cheap and _gain(s) < _gain(chosen[0])] if cheap else []
    for standing in higher[:1]:
        compared = format_estimate(world, standings.compare(standing.method, names[0]))
        text += f"With more backward passes, {standing.method}: {compared} against {names[0]}. "
    text += _on_molecules(molecules, names) if molecules else ""
    failing = [name for name in names if physics and name in collapsed_methods(physics)]
    if failing:
        text += (
            f"Do not use {join(failing)} if a loss can be driven to zero: {'they fail' if failing[1:] else 'it fails'} "
            f"on physics-informed networks. "
        )
    return Answer(question, f"{join(names)}.", text + _evidence(standings), anchor, tuple(names))


def _on_molecules(molecules: WorldStandings, names: Sequence[str]) -> str:
    """Say which of the methods are shown to be better than the plain sum on QM9."""
    signs = {s.method: verdict(molecules.world, s.against_sum) for s in _others(molecules) if s.method in names}
    better, others = ([name for name in names if name in signs and (signs[name] > 0) == side] for side in (True, False))
    if not better:
        return ""
    text = f"On QM9, where the targets are standardised, {join(better, 'and')} {'are' if better[1:] else 'is'} better "
    text += "than the plain sum"
    return text + (f", and {join(others, 'and')} {'are' if others[1:] else 'is'} not. " if others else ". ")


def _passes(names: Sequence[str], costs: Mapping[str, Cost]) -> str:
    """Say how many backward and forward passes methods of equal cost need: "One backward pass each. "."""
    passes = "One backward pass" if costs[names[0]].passes == "one" else "One backward pass per loss"
    forward = join([name for name in names if costs[name].extra_forward], "and")
    return (
        passes
        + (" each" if len(names) > 1 else "")
        + (f", and a second forward pass for {forward}. " if forward else ". ")
    )


def _physics(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world, text = standings.world, ""
    chosen = better_first(standings, pinn_methods(standings, costs))
    names = [s.method for s in chosen]
    if len(names) > 1:
        between = standings.compare(*names)
        text = f"{names[0]} against {names[1]}: {format_estimate(world, between)}. "
        text = text if verdict(world, between) else "These runs do not decide between the two. "
    compared = [f"{s.method}: {format_estimate(world, s.against_sum)}" for s in chosen]
    compared[0] += _range_of_problems(standings, names[0])
    text = f"Against the plain sum, {'; '.join(compared)}. {text}"
    for name in names:
        for problem, estimate in worse_problems(standings, name).items():
            text += f"{problem}: {name} is worse than the plain sum, {format_estimate(world, estimate)}. "
    text += f"All runs have {pinn_steps(world)} steps. "
    collapsed = [f"{name} on losses" if name == "BPGS" else name for name in collapsed_methods(standings)]
    if collapsed:
        text += f"Avoid {join(collapsed, 'and')}: errors more than {1 / COLLAPSE:.0f} times those of the plain sum. "
    text += _evidence(standings)
    short = f"{', or '.join(_with_passes(name, costs) for name in names)}."
    return Answer("I train a physics-informed network.", short, text, f"table-{world.name}", tuple(names))


def _range_of_problems(standings: WorldStandings, method: str) -> str:
    """Return the comparisons of a method with the plain sum where its gain is lowest and highest."""
    compared = {problem: standings.compare(method, problem=problem) for problem in standings.problems}
    found = sorted((e.value, problem, e) for problem, e in compared.items() if e is not None)
    if len(found) < 2:
        return ""
    low, high = (
        f"{format_estimate(standings.world, replace(e, low=e.value, high=e.value)).removeprefix('error ')} ({problem})"
        for _, problem, e in (found[0], found[-1])
    )
    return f", from {low} to {high}"


def _with_passes(method: str, costs: Mapping[str, Cost]) -> str:
    return f"{method} ({EACH})" if costs[method].passes == "each" else method


def pinn_methods(standings: WorldStandings, costs: Mapping[str, Cost]) -> list[Standing]:
    """Return the recommended methods for a physics-informed network: the cheap one, then that with a pass per loss.

    Each has the best mean rank of its group over all equations and seeds. The second is left out if it is shown to be
    worse than the first. Sums with fixed weights are left out.
    """
    found = [s for s in _others(standings) if not s.method.startswith("Sum")]
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
    """Return the problems of all worlds on which a method is shown to be worse than the plain sum, with the numbers."""
    return [
        f"{_problem_name(standings, problem)} ({format_estimate(standings.world, estimate)})"
        for standings in board
        for problem, estimate in worse_problems(standings, method).items()
    ]


def _problem_name(standings: WorldStandings, problem: str) -> str:
    """Return a problem with its world, unless its name says what it is: "oes10 of Tables", "Burgers equation"."""
    study, _, condition = problem.rpartition(": ")
    return f"{condition} of {standings.world.title}" if study else problem


def collapsed_methods(standings: WorldStandings) -> list[str]:
    """Return the methods whose errors are far larger than those of the plain sum, the largest first."""
    ranked = sorted(_others(standings), key=_gain)
    return [s.method for s in reversed(ranked) if s.against_sum and s.against_sum.high < COLLAPSE]


def _similar_scales(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world, others = standings.world, _others(standings)
    better, worse = (
        [s for s in sorted(others, key=_gain) if verdict(world, s.against_sum) == sign] for sign in (1, -1)
    )
    if better:
        named = [f"{s.method} ({format_estimate(world, s.against_sum)})" for s in better[:MAX_NAMES]]
        more = f" and {len(better) - MAX_NAMES} more" if len(better) > MAX_NAMES else ""
        text = f"Of {len(others)} methods, only {join(named, 'and')}{more} {_verb(better)} higher"
    else:
        text = f"None of {len(others)} methods scores detectably higher"
    text += f", and {join([s.method for s in worse], 'and')} {_verb(worse)} lower" if worse else ""
    text += ". The other intervals contain 0" if len(better) + len(worse) < len(others) else ""
    text += f". {_evidence(standings)}"
    expensive = [s for s in better if costs[s.method].passes == "each"][:1]
    short = f"The plain sum{''.join(f', or {s.method} ({EACH})' for s in expensive)}."
    methods = (PLAIN_SUM, *(s.method for s in expensive))
    return Answer("My losses have similar scales.", short, text, f"table-{world.name}", methods)


def _unknown_case(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> list[Answer]:
    """Name the methods that are worse than the plain sum in no world, of those that were run in all worlds but one."""
    places: dict[str, dict[str, tuple[int, float]]] = {}
    for standings in board:
        for s in _others(standings):
            if s.rank is not None:
                place = verdict(standings.world, s.against_sum), s.rank.value / len(standings.ranked)
                places.setdefault(s.method, {})[standings.world.title] = place
    places = {method: found for method, found in places.items() if len(found) >= len(board) - 1}
    worse = {method: [title for title, (sign, _) in found.items() if sign < 0] for method, found in places.items()}
    safe = [method for method in places if not worse[method]]
    safe.sort(key=lambda method: sum(rank for _, rank in places[method].values()) / len(places[method]))
    cheap = next((method for method in safe if costs[method].passes != "each"), "")
    expensive = next((method for method in safe if costs[method].passes == "each"), "")
    if len(board) < LEAST_WORLDS or not cheap or not expensive:
        return []
    chosen = [method for method in safe if method in (cheap, expensive)]
    better = {method: sum(sign > 0 for sign, _ in places[method].values()) for method in safe}
    named = [f"{method} (better in {better[method]} of {len(places[method])})" for method in safe]
    text = (
        f"{len(places)} methods were run in at least {len(board) - 1} of {len(board)} worlds. In no world are these "
        f"detectably worse than the plain sum, ordered by mean rank: {join(named, 'and')}. "
    )
    failing = [f"{method} ({join(titles, 'and')})" for method, titles in worse.items() if titles]
    text += f"Worse in some worlds: {join(failing, 'and')}. " if failing else ""
    for method in chosen:
        exceptions = single_exceptions(board, method)
        text += f"On single problems {method} is worse: {join(exceptions, 'and')}. " if exceptions else ""
    if costs[cheap].passes == "some":
        text += f"{cheap} needs one backward pass, and in some steps one per loss. "
    one = [method for method in safe if costs[method].passes == "one"]
    text += f"With one backward pass: {join(one)}." if one and cheap not in one else ""
    short = f"{', or '.join(_with_passes(method, costs) for method in chosen)}."
    return [Answer("I do not know which applies.", short, text.strip(), OVERVIEW, tuple(chosen))]


def _head_to_head(board: Sequence[WorldStandings], method: str, other: str) -> list[Answer]:
    sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for standings in board:
        estimate = standings.compare(method, other)
        if estimate is not None:
            numbers = [format_estimate(standings.world, estimate), *unequal_settings(standings.world, method, other)]
            for check in standings.checks:
                if (checked := check.compare(method, other)) is not None:
                    numbers.append(f"{check_name(standings, check)} {format_estimate(check.world, checked)}")
            sides[verdict(standings.world, estimate)].append(f"{standings.world.title} ({', '.join(numbers)})")
    words = {1: "Better on", -1: "Worse on", 0: "Undecided on"}
    parts = [f"{words[side]} {join(worlds, 'and')}." for side, worlds in sides.items() if worlds]
    if not parts:
        return []
    counts = {word: len(sides[side]) for side, word in ((1, "yes"), (-1, "no"), (0, "undecided")) if sides[side]}
    total = sum(counts.values())
    (word, count), *rest = counts.items()
    short = f"{word} in {count} of {total} {'world' if total == 1 else 'worlds'}"
    short = ", ".join([short, *(f"{word} in {count}" for word, count in rest)])
    return [Answer(f"Does {method} beat {other}?", f"{short[0].upper()}{short[1:]}.", " ".join(parts), HEAD_TO_HEAD)]


def check_name(standings: WorldStandings, check: WorldStandings) -> str:
    """Return the setting of a check: "with AdamW"."""
    return check.world.title.removeprefix(standings.world.title).strip()


def check_finding(standings: WorldStandings, check: WorldStandings) -> str:
    """Say how many methods have the same verdict against the plain sum in a check."""
    verdicts = [
        [
            verdict(s.world, found.against_sum) if (found := s.find(standing.method)) else None
            for s in (standings, check)
        ]
        for standing in _others(check)
    ]
    both = [pair for pair in verdicts if None not in pair]
    same = sum(first == second for first, second in both)
    setting = check_name(standings, check)
    return (
        f"{setting[0].upper()}{setting[1:]}, {same} of {len(both)} methods have the same verdict against the plain sum."
    )


def unequal_settings(world: World, method: str, other: str) -> list[str]:
    """Return the settings in which two methods differ besides the method."""
    return [text for name, text in world.unequal.items() if name in (method, other)]


def _cost(board: Sequence[WorldStandings], costs: Mapping[str, Cost], method: str) -> list[Answer]:
    if method not in costs or not any(found.rank for s in board if (found := s.find(method))):
        return []
    cost = str(costs[method])
    text = "With three losses, three backward passes instead of one." if costs[method].passes == "each" else ""
    whole, features = step_times().ratios.get(method, (None, None))
    if whole is not None:
        molecules = any(s.world.name == "molecules" and s.find(method) for s in board)
        article = "Except on QM9, the" if molecules else "The"
        text = (
            f"With three tasks of a SegNet, a step takes {whole:.2f} × as long as a plain step, or {features:.2f} × if "
            f"gradients are compared at the input of the heads (features=). {article} recorded runs compare them "
            f"on all shared parameters."
        )
    anchor = COST_FIGURE if whole is None else STEP_TIMES
    return [Answer(f"What does {method} cost?", f"{cost[0].upper()}{cost[1:]} in each step.", text, anchor)]


def _evidence(standings: WorldStandings) -> str:
    problems, seeds = len(standings.problems), len(standings.seeds)
    return f"({problems} problem{'s' if problems > 1 else ''}, {seeds} seeds)"


def _verb(standings: Sequence[Standing]) -> str:
    return "score detectably" if len(standings) > 1 else "scores detectably"


def _others(standings: WorldStandings) -> list[Standing]:
    """Return the ranked methods except the plain sum."""
    return [standing for standing in standings.ranked if standing.method != PLAIN_SUM and standing.against_sum]


def _gain(standing: Standing) -> float:
    return -standing.against_sum.value if standing.against_sum else 0.0
