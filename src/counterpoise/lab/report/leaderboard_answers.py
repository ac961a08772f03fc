"""Answers that a practitioner can act on, written by rules from the standings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..studies import STUDIES
from .leaderboard import Estimate, Standing, WorldStandings
from .leaderboard_cost import PASSES, Cost, step_times
from .leaderboard_text import (
    FAILING,
    against_tuned_sum,
    better_first,
    by_gain,
    check_name,
    collapsed_methods,
    format_estimate,
    format_factor,
    is_behind_tuned_sum,
    is_worse,
    join,
    other_methods,
    pinn_methods,
    pinn_steps,
    single_exceptions,
    unequal_settings,
    usage,
    verdict,
    without_interval,
    worse_problems,
)
from .leaderboard_worlds import PLAIN_SUM, TUNED_SUM, recipes

OVERVIEW, COST_FIGURE = "figure-leaderboard", "figure-leaderboard-cost"
HEAD_TO_HEAD, STEP_TIMES = "table-head-to-head", "table-step-times"
"""Anchors of numbers on the page."""
EACH = PASSES["each"]
LEAST_WORLDS = 4
"""With fewer worlds, no method is recommended for all of them."""
MAX_NAMES = 4
PENALISED, FIXED = (f'cp.{name}(tasks, fixed={{"kl": beta}})' for name in ("Static", "FirstLoss"))
TUNED = 'cp.Static(tasks, weights={"residual": 1, "boundary": 100})'


@dataclass(frozen=True)
class Answer:
    """A question and its answer.

    Args:
        question: The question.
        short: The answer in a few words.
        note: The main reason, and where the answer does not apply.
        text: The details.
        anchor: Anchor of the numbers on the page. Default: none.
        methods: The methods that it recommends.
        calls: Further calls that it recommends, in the order of the answer after the first method. Default: none.
    """

    question: str
    short: str
    note: str
    text: str
    anchor: str = ""
    methods: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def code(self) -> tuple[str, ...]:
        """How to build the methods, in the order of the answer."""
        built = tuple(filter(None, (usage(recipes()[method]) for method in self.methods)))
        return built[:1] + self.calls + built[1:]


WARNED = ("BPGS", "Nash-MTL", "Gradient normalisation")
"""Methods that other answers recommend. The answer on penalties says what they do to one."""


def answers(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> list[Answer]:
    """Return the answers for which there are runs."""
    found = {standings.world.name: standings for standings in board if other_methods(standings)}
    physics = found.get("physics")
    written = []
    if "tables-rescaled" in found:
        written.append(_different_units(found["tables-rescaled"], costs, physics, found.get("molecules")))
    if physics:
        written.append(_physics(physics, costs))
    if "penalties" in found:
        written.append(_penalty(found["penalties"], costs))
    if "tables" in found:
        written.append(_similar_scales(found["tables"], costs))
    written += _unknown_case(list(found.values()), costs)
    written += _head_to_head(board, "BPGS", "Kendall")
    written += _cost(board, costs, "Nash-MTL")
    return written


def _different_units(
    standings: WorldStandings,
    costs: Mapping[str, Cost],
    physics: WorldStandings | None,
    molecules: WorldStandings | None,
) -> Answer:
    question, world, plain = "My losses have different units.", standings.world, standings.find(PLAIN_SUM)
    as_good = [s for s in other_methods(standings) if s.against_tuned and verdict(world, s.against_tuned) >= 0]
    cheap = [s for s in as_good if costs[s.method].passes == "one"]
    candidates = sorted(cheap or as_good, key=by_gain)[:MAX_NAMES]
    chosen = [s for s in candidates if not (molecules and _is_no_better(molecules, s.method))] or candidates
    behind = plain and f" The plain sum scores {format_estimate(world, plain.against_tuned)} against that sum."
    anchor = f"table-{world.name}"
    if not chosen:
        note = f"No method reaches the hand-tuned sum.{behind or ''}"
        return Answer(question, "Weights that undo the units, set by hand.", note, _evidence(standings), anchor)
    names = [s.method for s in chosen]
    note = f"{_none(names)} shown to be worse than the hand-tuned sum, whose weights undo the units.{behind or ''}"
    if left_out := [s.method for s in candidates if s not in chosen]:
        verb = "are" if left_out[1:] else "is"
        note += f" {join(left_out, 'and')} {verb} as good, but not shown to be better than the plain sum on QM9"
        note += " (molecules)."
    failing = [name for name in names if physics and name in collapsed_methods(physics)]
    if failing:
        note += f" Do not use {join(failing)} if a loss can be driven to zero."
    note += " Standardise regression targets first: a weight on a loss cannot undo a factor on its target."
    text = _passes(names, costs)
    text += f"{names[0]} against the hand-tuned sum: {format_estimate(world, chosen[0].against_tuned)}. "
    if len(names) > 1 and not any(verdict(world, standings.compare(*pair)) for pair in combinations(names, 2)):
        text += "The runs do not decide between these methods. "
    best = min(as_good, key=by_gain)
    if by_gain(best) < by_gain(chosen[0]):
        compared = format_estimate(world, standings.compare(best.method, names[0]))
        text += f"With more backward passes, {best.method}: {compared} against {names[0]}. "
    text += _on_molecules(molecules, [s.method for s in candidates]) if molecules else ""
    if failing:
        text += f"{join(failing, 'and')} {'fail' if failing[1:] else 'fails'} on physics-informed networks. "
    return Answer(question, f"{join(names)}.", note, text + _evidence(standings), anchor, tuple(names))


def _none(names: Sequence[str]) -> str:
    return {1: "It is not", 2: "Neither is"}.get(len(names), "None of them is")


def _is_no_better(standings: WorldStandings, method: str) -> bool:
    """Return whether a method was run in a world and is not shown to be better than the plain sum there."""
    found = standings.find(method)
    return found is not None and verdict(standings.world, found.against_sum) <= 0


def _on_molecules(molecules: WorldStandings, names: Sequence[str]) -> str:
    """Say which of the methods are shown to be better than the plain sum on QM9."""
    signs = {s.method: verdict(molecules.world, s.against_sum) for s in other_methods(molecules) if s.method in names}
    better, others = ([name for name in names if name in signs and (signs[name] > 0) == side] for side in (True, False))
    if not better:
        return ""
    text = f"On QM9, where the targets are standardised, {join(better, 'and')} {'are' if better[1:] else 'is'} better "
    text += "than the plain sum"
    return text + (f"; {join(others, 'and')} {'are' if others[1:] else 'is'} not shown to be. " if others else ". ")


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
    world, question = standings.world, "I train a physics-informed network (PINN)."
    chosen = better_first(standings, pinn_methods(standings, costs))
    names = [s.method for s in chosen]
    gains, details = [], []
    for standing in chosen:
        exceptions = worse_problems(standings, standing.method)
        but = f", but worse on the {join(list(exceptions), 'and')}" if exceptions else ""
        gains.append(f"{standing.method}: {without_interval(world, standing.against_sum)}{but}")
        if not exceptions:
            gains[-1] += _factors_of_problems(standings, standing.method)
        details += [
            f"{problem}: {standing.method} is worse than the plain sum, {format_estimate(world, estimate)}. "
            for problem, estimate in exceptions.items()
        ]
    note = f"Against the plain sum, {'; '.join(gains)}."
    short = _either(names, costs)
    calls: tuple[str, ...] = ()
    if all(standing.against_tuned for standing in chosen):
        tuned = [f"{name}: {against_tuned_sum(standings, name)}" for name in names]
        note += f" Against the sum with a tuned factor on the conditions, {'; '.join(tuned)}."
        if "; cheaper: " in short and is_behind_tuned_sum(standings, names[-1]):
            short, calls = short.replace("; cheaper: ", "; cheaper: a tuned factor, or "), (TUNED,)
    collapsed = [f"{name} on losses" if name == "BPGS" else name for name in collapsed_methods(standings)]
    others = len(collapsed) - 1
    if "BPGS on losses" in collapsed:
        more = f", as {'does' if others == 1 else 'do'} {others} more method{'s' * (others > 1)}" if others else ""
        note += f" BPGS on losses fails{more}."
    note += (
        f" {join(names, 'and')} can fail, too, if a constant solves the residual (advection): use the plain sum there."
    )
    compared = [f"{s.method}: {format_estimate(world, s.against_sum)}" for s in chosen]
    compared[0] += _range_of_problems(standings, names[0])
    text = f"Against the plain sum, {'; '.join(compared)}. "
    if len(names) > 1:
        between = standings.compare(*names)
        decided = f"{names[0]} against {names[1]}: {format_estimate(world, between)}. "
        text += decided if verdict(world, between) else "These runs do not decide between the two. "
    text += _without_largest_gain(standings, names) if all(s.against_tuned for s in chosen) else ""
    text += f"{''.join(details)}All runs have {pinn_steps(world)} steps. "
    if collapsed:
        times = f"more than {1 / FAILING[world.unit]:.0f} times those of the plain sum"
        text += f"Avoid {join(collapsed, 'and')}: errors {times}. "
    return Answer(question, short, note, text + _evidence(standings), f"table-{world.name}", tuple(names), calls)


def _penalty(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world = standings.world
    others = [s for s in sorted(other_methods(standings), key=by_gain) if not s.method.startswith("Sum")]
    worse = [s for s in others if verdict(world, s.against_sum) < 0]
    kept = [s.method for s in others if not is_worse(standings, s.method)]
    note = f"{len(worse)} of {len(others)} methods are worse than the plain sum"
    if failing := [f"{s.method}: {without_interval(world, s.against_sum)}" for s in worse if s.method in WARNED]:
        note += f" ({join(failing, 'and')}; −100 % is a solution that ignores the input)"
    for check in standings.checks:
        if later := [s.method for s in others if s not in worse and is_worse(check, s.method)]:
            note += f", and {join(later, 'and')} {check_name(standings, check)}"
    free = [method for method in kept if costs[method].passes == "one"]
    note += "."
    if free:
        verb = "are" if free[1:] else "is"
        note += f" Of the methods with one backward pass, {join(free, 'and')} {verb} not shown to be worse."
    text = "If the other losses are tasks of different scale, divide these by their first values and fix the penalty: "
    text += f"{FIXED}. Tune its factor for each method (study: {STUDIES['penalised-tasks'].title}). "
    text += f"Not detectably worse than the plain sum: {join(kept, 'and')}. " if kept else ""
    return Answer(
        "One loss is a KL term or another penalty.", "A fixed weight for this term.", note, text + _evidence(standings),
        f"table-{world.name}", calls=(PENALISED, FIXED),
    )  # fmt: skip


def _extremes(standings: WorldStandings, method: str) -> list[tuple[str, Estimate]]:
    """Return the problems on which the gain of a method over the plain sum is lowest and highest, with the gains."""
    compared = {problem: standings.compare(method, problem=problem) for problem in standings.problems}
    found = sorted((e.value, problem, e) for problem, e in compared.items() if e is not None)
    return [(problem, e) for _, problem, e in (found[0], found[-1])] if len(found) > 1 else []


def _range_of_problems(standings: WorldStandings, method: str) -> str:
    """Return the comparisons of a method with the plain sum where its gain is lowest and highest."""
    found = [
        f"{without_interval(standings.world, estimate).removeprefix('error ')} ({problem})"
        for problem, estimate in _extremes(standings, method)
    ]
    return f", from {' to '.join(found)}" if found else ""


def _factors_of_problems(standings: WorldStandings, method: str) -> str:
    """Return the same as factors without the problems: " (2.2 × to 57 ×)". The method must be better on all of them."""
    found = [f"{format_factor(estimate.value)} ×" for _, estimate in _extremes(standings, method)]
    return f" ({' to '.join(found)} on single equations)" if found else ""


def _without_largest_gain(standings: WorldStandings, methods: Sequence[str]) -> str:
    """Compare methods with the hand-tuned sum without the problem on which the first one gains most."""
    extremes = _extremes(standings, methods[0])
    if not extremes:
        return ""
    problem, rest = extremes[-1][0], standings.without(extremes[-1][0])
    compared = [f"{m}: {format_estimate(rest.world, rest.compare(m, TUNED_SUM))}" for m in methods]
    return f"Without the {problem}, against the hand-tuned sum, {'; '.join(compared)}. "


def _either(methods: Sequence[str], costs: Mapping[str, Cost]) -> str:
    """Name one or two methods: "CAGrad (one backward pass per loss); cheaper: BPGS."."""
    each = [costs[method].passes == "each" for method in methods]
    named = [f"{method} ({EACH})" if many else method for method, many in zip(methods, each, strict=True)]
    return f"{('; cheaper: ' if each == [True, False] else ', or ').join(named)}."


def _similar_scales(standings: WorldStandings, costs: Mapping[str, Cost]) -> Answer:
    world, others = standings.world, other_methods(standings)
    better, worse = (
        [s for s in sorted(others, key=by_gain) if verdict(world, s.against_sum) == sign] for sign in (1, -1)
    )
    if better:
        named = [f"{s.method} ({format_estimate(world, s.against_sum)})" for s in better[:MAX_NAMES]]
        more = f" and {len(better) - MAX_NAMES} more" if len(better) > MAX_NAMES else ""
        note = f"Of {len(others)} methods, only {join(named, 'and')}{more} {_verb(better)} higher"
    else:
        note = f"None of {len(others)} methods scores detectably higher"
    note += f", and {join([s.method for s in worse], 'and')} {_verb(worse)} lower." if worse else "."
    text = "The other intervals contain 0. " if len(better) + len(worse) < len(others) else ""
    expensive = [s for s in better if costs[s.method].passes == "each"][:1]
    short = f"The plain sum{''.join(f', or {s.method} ({EACH})' for s in expensive)}."
    methods = (PLAIN_SUM, *(s.method for s in expensive))
    return Answer(
        "My losses have similar scales.", short, note, text + _evidence(standings), f"table-{world.name}", methods
    )


def _worlds_without_rank(board: Sequence[WorldStandings], method: str) -> str:
    """Say in which worlds a method was not run, or at fewer seeds than the methods with a rank."""
    found = {s.world.title: s.find(method) for s in board}
    absent = [title for title, standing in found.items() if standing is None]
    fewer = [title for title, standing in found.items() if standing is not None and standing.rank is None]
    text = f"{method} was not run on {join(absent, 'and')}. " if absent else ""
    return text + (f"{method} was run at fewer seeds on {join(fewer, 'and')}. " if fewer else "")


def _unknown_case(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> list[Answer]:
    """Name the methods that are worse than the plain sum in no world, of those with a rank in all worlds but one.

    Penalties do not count: users know which of their losses is one, and can pass it with a fixed weight.
    """
    penalised = [standings for standings in board if standings.world.name == "penalties"]
    board = [standings for standings in board if standings.world.name != "penalties"]
    places: dict[str, dict[str, tuple[int, float]]] = {}
    for standings in board:
        for s in other_methods(standings):
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
    note = "Neither is detectably worse than the plain sum in any world in which it was run"
    exempt = any(is_worse(standings, method) for standings in penalised for method in chosen)
    note += ", except in Penalties: such a term needs a fixed weight." if exempt else "."
    counted = " without Penalties" if penalised else ""
    text = (
        f"{len(places)} methods were ranked in at least {len(board) - 1} of {len(board)} worlds{counted}. "
        f"{len(safe)} of them are not detectably worse than the plain sum in any of these worlds, the best mean rank "
        f"first: {join(named, 'and')}. "
    )
    text += "".join(_worlds_without_rank(board, method) for method in chosen)
    failing = [f"{method} ({join(titles, 'and')})" for method, titles in worse.items() if titles]
    text += f"Worse in some worlds: {join(failing, 'and')}. " if failing else ""
    for method in chosen:
        if exceptions := single_exceptions(board, method):
            many = f"{len(exceptions)} single problems, including " if exceptions[1:] else ""
            note += f" {method} is worse on {many}{exceptions[-1]}."
            text += f"On single problems {method} is worse: {join(exceptions, 'and')}. "
    if costs[cheap].passes == "some":
        text += f"{cheap} needs one backward pass, and in some steps one per loss. "
    one = [method for method in safe if costs[method].passes == "one"]
    text += f"With one backward pass: {join(one)}." if one and cheap not in one else ""
    return [Answer("I do not know which applies.", _either(chosen, costs), note, text.strip(), OVERVIEW, tuple(chosen))]


def _head_to_head(board: Sequence[WorldStandings], method: str, other: str) -> list[Answer]:
    sides: dict[int, list[tuple[str, str]]] = {1: [], -1: [], 0: []}
    for standings in board:
        estimate = standings.compare(method, other)
        if estimate is not None:
            numbers = [format_estimate(standings.world, estimate), *unequal_settings(standings.world, method, other)]
            for check in standings.checks:
                if (checked := check.compare(method, other)) is not None:
                    numbers.append(f"{check_name(standings, check)} {format_estimate(check.world, checked)}")
            title, unequal = standings.world.title, unequal_settings(standings.world, method, other)
            named = f"{title} ({', '.join(unequal)})" if unequal else title
            sides[verdict(standings.world, estimate)].append((named, f"{title} ({', '.join(numbers)})"))
    words = {1: "better on", -1: "worse on", 0: "undecided on"}
    found = {words[side]: worlds for side, worlds in sides.items() if worlds}
    if not found:
        return []
    note = "; ".join(f"{word} {join([title for title, _ in worlds], 'and')}" for word, worlds in found.items())
    parts = [f"{word} {join([numbers for _, numbers in worlds], 'and')}" for word, worlds in found.items()]
    counts = {word: len(sides[side]) for side, word in ((1, "yes"), (-1, "no"), (0, "undecided")) if sides[side]}
    total = sum(counts.values())
    (word, count), *rest = counts.items()
    short = f"{word} in {count} of {total} {'world' if total == 1 else 'worlds'}"
    short = ", ".join([short, *(f"{word} in {count}" for word, count in rest)])
    question, text = f"Does {method} beat {other}?", " ".join(f"{_sentence(part)}." for part in parts)
    return [Answer(question, f"{_sentence(short)}.", f"{_sentence(note)}.", text, HEAD_TO_HEAD)]


def _cost(board: Sequence[WorldStandings], costs: Mapping[str, Cost], method: str) -> list[Answer]:
    if method not in costs or not any(found.rank for s in board if (found := s.find(method))):
        return []
    note = "With three losses, three backward passes instead of one." if costs[method].passes == "each" else ""
    text = ""
    whole, features = step_times().ratios.get(method, (None, None))
    if whole is not None:
        note = (
            f"With three tasks of a SegNet, a step takes {whole:.2f} × as long as a plain step, or {features:.2f} × if "
            f"gradients are compared at the input of the heads (features=)."
        )
        molecules = any(s.world.name == "molecules" and s.find(method) for s in board)
        text = (
            f"{'Except on QM9, the' if molecules else 'The'} recorded runs compare gradients on all shared parameters."
        )
    anchor = COST_FIGURE if whole is None else STEP_TIMES
    return [Answer(f"What does {method} cost?", f"{_sentence(str(costs[method]))} in each step.", note, text, anchor)]


def _sentence(text: str) -> str:
    """Return the text with a capital at its start."""
    return text[:1].upper() + text[1:]


def _evidence(standings: WorldStandings) -> str:
    problems, seeds = len(standings.problems), len(standings.seeds)
    return f"({problems} problem{'s' if problems > 1 else ''}, {seeds} seeds)"


def _verb(standings: Sequence[Standing]) -> str:
    return "score detectably" if len(standings) > 1 else "scores detectably"
