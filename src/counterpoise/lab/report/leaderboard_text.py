"""Answers that a practitioner can act on, written by rules from the standings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .leaderboard import Estimate, Standing, WorldStandings
from .leaderboard_cost import Cost
from .leaderboard_worlds import PLAIN_SUM, World

FIGURE = "figure-leaderboard"
MAX_NAMES = 4
COLLAPSE = 0.2
"""A method whose errors are more than 1 / COLLAPSE times those of the plain sum is advised against."""


@dataclass(frozen=True)
class Answer:
    """A question, its answer, and the anchor of the numbers."""

    question: str
    text: str
    anchor: str


def format_estimate(world: World, estimate: Estimate | None) -> str:
    """Format a comparison: "+3.0 % [+0.9, +5.5]", "error 12 × lower [8, 16]", or "error 14 × higher [10, 20]"."""
    if estimate is None:
        return "–"
    if world.unit == "factor":
        lower = estimate.value >= 1
        numbers = [estimate.value, *(sorted((estimate.low, estimate.high)) if lower else (estimate.high, estimate.low))]
        value, low, high = (_factor(number if lower else 1 / number) for number in numbers)
        return f"error {value} × {'lower' if lower else 'higher'}" + ("" if low == high else f" [{low}, {high}]")
    numbers = [estimate.value, estimate.low, estimate.high]
    value, low, high = (f"{round(number, 1) + 0.0:+.1f}".replace("-", "−") for number in numbers)
    return f"{value} %" if low == high else f"{value} % [{low}, {high}]"


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
    written = []
    if "tables-rescaled" in found:
        written.append(_different_units(found["tables-rescaled"], costs))
    if "physics" in found:
        written.append(_physics(found["physics"], costs))
    if "tables" in found:
        written.append(_similar_scales(found["tables"]))
    written += _head_to_head(board, "BPGS", "Kendall")
    written += _cost(board, costs, "Nash-MTL")
    return written


def join(names: Sequence[str], word: str = "or") -> str:
    """Join names: "a, b or c"."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def _different_units(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world, plain = standings.world, standings.find(PLAIN_SUM)
    as_good = [s for s in _others(standings) if s.against_tuned and verdict(world, s.against_tuned) >= 0]
    cheap = [s for s in as_good if costs[s.method].passes == "one"]
    chosen = sorted(cheap or as_good, key=_gain)[:MAX_NAMES]
    behind = "" if plain is None else f" The plain sum: {format_estimate(world, plain.against_tuned)}."
    if not chosen:
        text = f"No method reaches the hand-tuned sum.{behind}"
    else:
        cost = " (one backward pass)" if cheap else ""
        them = "them" if len(chosen) > 1 else "it"
        names = join([s.method for s in chosen])
        text = (
            f"Use {names}{cost}: the runs do not show {them} to be worse than the hand-tuned sum "
            f"({chosen[0].method}: {format_estimate(world, chosen[0].against_tuned)}).{behind}"
        )
    text += f" {_evidence(standings)}"
    return Answer("My losses have different units.", text, f"world-{world.name}")


def _physics(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world = standings.world
    ranked = sorted(_others(standings), key=_gain)
    best = ranked[0]
    cheap = [s for s in ranked if costs[s.method].passes != "each" and not s.method.startswith("Sum")]
    first = cheap[0] if cheap else best
    text = f"Use {first.method} ({format_estimate(world, first.against_sum)} against the plain sum)"
    if first is not best:
        text += f" or, with one backward pass per loss, {best.method} ({format_estimate(world, best.against_sum)})"
    collapsed = [s.method for s in reversed(ranked) if s.against_sum and s.against_sum.high < COLLAPSE]
    if collapsed:
        text += f". Avoid {join(collapsed, 'and')}: their errors are more than {1 / COLLAPSE:.0f} times as large"
    text += f". {_evidence(standings)}"
    return Answer("I train a physics-informed network.", text, f"world-{world.name}")


def _similar_scales(standings: WorldStandings) -> Answer:
    world, others = standings.world, _others(standings)
    better, worse = ([s for s in others if verdict(world, s.against_sum) == sign] for sign in (1, -1))
    if better:
        named = [f"{s.method} ({format_estimate(world, s.against_sum)})" for s in sorted(better, key=_gain)[:MAX_NAMES]]
        text = f"Start with the plain sum. Of {len(others)} methods, only {join(named, 'and')} {_verb(better)} higher"
    else:
        text = f"Use the plain sum. None of {len(others)} methods scores higher"
    text += f", and {join([s.method for s in worse], 'and')} {_verb(worse)} lower" if worse else ""
    text += "; the other intervals contain 0" if len(better) + len(worse) < len(others) else ""
    text += f". {_evidence(standings)}"
    return Answer("My losses have similar scales.", text, f"world-{world.name}")


def _head_to_head(board: Sequence[WorldStandings], method: str, other: str) -> list[Answer]:
    sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for standings in board:
        estimate = standings.compare(method, other)
        if estimate is not None:
            text = f"{standings.world.title} ({format_estimate(standings.world, estimate)})"
            sides[verdict(standings.world, estimate)].append(text)
    words = {1: "better on", -1: "worse on", 0: "undecided on"}
    parts = [f"{words[side]} {join(worlds, 'and')}" for side, worlds in sides.items() if worlds]
    if not parts:
        return []
    return [Answer(f"Does {method} beat {other}?", f"{method} is {'; '.join(parts)}.", FIGURE)]


def _cost(board: Sequence[WorldStandings], costs: Mapping[str, Cost], method: str) -> list[Answer]:
    places = [(s, found.rank) for s in board if (found := s.find(method)) and found.rank]
    if method not in costs or not places:
        return []
    ranks = [f"{rank.value:.1f} of {len(s.ranked)} on {s.world.title}" for s, rank in places]
    text = f"{costs[method]} in each step. Its mean ranks: {join(ranks, 'and')}."
    return [Answer(f"What does {method} cost?", text[0].upper() + text[1:], FIGURE)]


def _evidence(standings: WorldStandings) -> str:
    problems, seeds = len(standings.problems), len(standings.seeds)
    return f"({problems} problem{'s' if problems > 1 else ''}, {seeds} seeds)"


def _verb(standings: Sequence[Standing]) -> str:
    return "score" if len(standings) > 1 else "scores"


def _others(standings: WorldStandings) -> list[Standing]:
    """Return the ranked methods except the plain sum."""
    return [standing for standing in standings.ranked if standing.method != PLAIN_SUM and standing.against_sum]


def _gain(standing: Standing) -> float:
    return -standing.against_sum.value if standing.against_sum else 0.0
