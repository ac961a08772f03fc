"""The leaderboard on the page: answers, figures, a card per world, and complete tables as HTML and files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from ..engine import Recipe
from ..engine.methods import describe
from . import ranks
from .card_pictures import CardPicture, FinishedCells, card_picture
from .figures.leaderboard import frontier, overview
from .figures.spec import FigureSpec
from .intervals import SEEDS_OF_AN_INTERVAL
from .leaderboard import Estimate, Standing, WorldStandings, leaderboard
from .leaderboard_answers import Answer, answers
from .leaderboard_cost import Cost, step_costs, step_times
from .leaderboard_text import check_finding, format_change, format_estimate, join, unequal_settings, usage, verdict
from .leaderboard_worlds import PLAIN_SUM, TUNED_SUM, World, other_labels, recipes
from .ranks import PrintedTable
from .tables import METRIC_NAMES, format_seeds

CARD_METHODS = 3
FEW_METRICS = 4
COMPARED = ("BPGS", "Kendall")
VERDICTS = {1: "better", -1: "worse", 0: "undecided"}


@dataclass(frozen=True)
class CardRow:
    """A method on a card: its mean rank, its comparison with the plain sum, how that is decided, and its cost."""

    method: str
    rank: str
    comparison: str
    verdict: str  # better, worse, undecided
    cost: str
    width: int  # of its bar, in % of that of the best method of the card
    metrics: str = ""  # changes of single metrics


@dataclass(frozen=True)
class WorldCard:
    """A world on the page: its best methods, and a sentence on each check with the anchor of its table."""

    anchor: str
    title: str
    situation: str
    facts: str
    best: list[CardRow]
    studies: tuple[str, ...]
    picture: CardPicture
    checks: dict[str, str]


@dataclass(frozen=True)
class WorldTable:
    """All methods of a world or of a check, and what to know about the comparison."""

    anchor: str
    title: str
    situation: str
    table: PrintedTable
    notes: tuple[str, ...]
    studies: tuple[str, ...]


@dataclass
class LeaderboardSection:
    """The opening of the page."""

    answers: list[Answer] = field(default_factory=list)
    cards: list[WorldCard] = field(default_factory=list)
    tables: list[WorldTable] = field(default_factory=list)
    figures: dict[str, FigureSpec] = field(default_factory=dict)
    head_to_head: PrintedTable | None = None
    step_times: PrintedTable | None = None
    methods: PrintedTable | None = None
    texts: dict[str, str] = field(default_factory=dict)  # files beside the page, by name


def leaderboard_section(
    frames: Mapping[str, pd.DataFrame], finished: FinishedCells = MappingProxyType({})
) -> LeaderboardSection:
    """Return the leaderboard of recorded scores; empty if no world has any.

    Args:
        frames: The scores of all runs of each study, at all learning rates, by the name of the study.
        finished: Finished runs, whose predictions and solutions are shown. Default: none.
    """
    board, costs = leaderboard(frames), step_costs(frames)
    if not board:
        return LeaderboardSection()
    shown = with_checks(board)
    findings = {c.world.name: (check_finding(standings, c),) for standings in board for c in standings.checks}
    tables = [_complete_table(standings, costs, findings.get(standings.world.name, ())) for standings in shown]
    methods = methods_table(shown)
    return LeaderboardSection(
        answers(board, costs),
        [world_card(standings, costs, card_picture(standings, finished)) for standings in board],
        tables,
        {"leaderboard": overview(board), "leaderboard-cost": frontier(board, costs)},
        head_to_head_table(board, *COMPARED),
        step_times_table(),
        methods,
        {
            "tables/leaderboard.md": ranks.markdown(part.table for part in tables),
            "tables/leaderboard.csv": leaderboard_csv(shown, costs),
            "tables/head-to-head.csv": head_to_head_csv(shown, *COMPARED),
            "tables/step-times.csv": step_times_csv(),
            "tables/methods.csv": str(pd.DataFrame(methods.rows, columns=methods.heads).to_csv(index=False)),
        }
        | {run_scores_file(standings.world.name): run_scores_csv(standings) for standings in shown},
    )


def with_checks(board: Sequence[WorldStandings]) -> list[WorldStandings]:
    """Return the worlds, each followed by its checks."""
    return [part for standings in board for part in (standings, *standings.checks)]


def world_card(standings: WorldStandings, costs: Mapping[str, Cost], picture: CardPicture) -> WorldCard:
    world = standings.world
    best = [s for s in standings.ranked if s.method != PLAIN_SUM][:CARD_METHODS]
    longest = max((_gain(standings, standing) for standing in best), default=0.0) or 1.0
    problems = len(standings.problems)
    facts = [f"{problems} problem{'s' if problems > 1 else ''}", format_seeds(standings.seeds)]
    facts.append(f"{len(standings.ranked)} methods ranked")
    return WorldCard(
        world.name,
        world.title,
        world.situation,
        " · ".join(facts),
        [_card_row(standings, standing, costs, longest) for standing in best],
        world.studies,
        picture,
        {f"table-{check.world.name}": check_finding(standings, check) for check in standings.checks},
    )


def _complete_table(standings: WorldStandings, costs: Mapping[str, Cost], findings: tuple[str, ...]) -> WorldTable:
    world, table = standings.world, world_table(standings, costs)
    notes = (how_compared(world), *findings, *world.confounds)
    return WorldTable(world.name, world.title, world.situation, table, notes, world.studies)


def how_compared(world: World) -> str:
    """Say how the numbers of a world are computed from the scores of its runs."""
    metrics = ", metrics" if len(world.metrics) > 1 else ""
    if world.unit == "factor":
        return f"A comparison of errors is the geometric mean of their ratios over problems{metrics} and seeds."
    if not metrics:
        return "A comparison is the change of the mean score over problems and seeds."
    return (
        "A comparison is the mean change of the metrics, each as a mean over problems and seeds. Comparisons with "
        "different methods do not add up."
    )


def step_times_table() -> PrintedTable:
    """Return the measured times of a step with each method."""
    times = step_times()
    rows = [[PLAIN_SUM, *[f"1.00 × ({times.plain:.1f} ms)"] * 2]]
    for method, ratios in times.ratios.items():
        pairs = zip(ratios, times.milliseconds[method], strict=True)
        rows.append([method, *("–" if ratio is None else f"{ratio:.2f} × ({ms:.1f} ms)" for ratio, ms in pairs)])
    heads = ["method", "all shared parameters", "features="]
    return PrintedTable(heads, rows, "Time of a step, relative to the plain sum", times.setting)


def step_times_csv() -> str:
    times = step_times()
    rows = [[PLAIN_SUM, 1.0, 1.0, times.plain, times.plain]]
    rows += [[method, *ratios, *times.milliseconds[method]] for method, ratios in times.ratios.items()]
    frame = pd.DataFrame(rows, columns=["method", "shared", "features", "shared_ms", "features_ms"])
    return str(frame.to_csv(index=False, float_format="%.6g"))


def methods_table(board: Sequence[WorldStandings]) -> PrintedTable:
    """Return what each method of the leaderboard does, how to build it, and its paper."""
    names = dict.fromkeys(s.method for standings in board for s in standings.standings)
    rows = []
    for name in sorted(names, key=str.casefold):
        recipe = recipes()[name]
        parts = [describe(part.name) for part in (recipe.weighting, recipe) if part is not None]
        papers = ", ".join(part.paper for part in parts if part.paper)
        description = "; then ".join(part.summary for part in parts)
        labels = [f"called {join(other_labels()[name])} in some tables"] if name in other_labels() else []
        rows.append([name, "; ".join([description, *_settings(recipe), *labels]), usage(recipe), papers])
    return PrintedTable(["method", "description", "code", "paper"], rows, "Methods")


def _settings(recipe: Recipe) -> list[str]:
    """Return how a method or the network is trained where that differs from the study, for example at another rate."""
    found = [] if recipe.lr is None else [f"learning rate of its weights: {recipe.lr:g}"]
    return found + ([] if recipe.network_clip is None else [f"network gradients clipped at {recipe.network_clip:g}"])


def head_to_head_table(board: Sequence[WorldStandings], method: str, other: str) -> PrintedTable | None:
    """Return the comparison of two methods in each world; None if no world has both."""
    rows = []
    checks = {check.world.name for standings in board for check in standings.checks}
    for standings in with_checks(board):
        if (estimate := standings.compare(method, other)) is not None:
            world = standings.world
            notes = unequal_settings(world, method, other) + ["a check, not counted"] * (world.name in checks)
            cells = [format_estimate(world, estimate), VERDICTS[verdict(world, estimate)]]
            rows.append([world.title, *cells, str(_shared_runs(standings, method, other)), ", ".join(notes)])
    heads = ["world", "difference", "verdict", "pairs of runs", "note"]
    return PrintedTable(heads, rows, f"{method} against {other}", "95 % intervals over seeds, paired") if rows else None


def head_to_head_csv(board: Sequence[WorldStandings], method: str, other: str) -> str:
    """Return a row per world with the comparison of two methods."""
    found = [(s, estimate) for s in board if (estimate := s.compare(method, other)) is not None]
    rows = [
        {"world": s.world.name, "unit": s.world.unit, "method": method, "other": other}
        | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        | {"pairs": _shared_runs(s, method, other), "note": ", ".join(unequal_settings(s.world, method, other))}
        for s, estimate in found
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g"))


def _shared_runs(standings: WorldStandings, method: str, other: str) -> int:
    """Return the number of pairs of runs on the same problem and seed."""
    pairs = standings.scores[[method, other]].dropna().index
    return len(pairs.droplevel("metric").unique())


def _gain(standings: WorldStandings, standing: Standing) -> float:
    """Return by how much a method is better than the plain sum, 0 if it is not: in %, or as the log of a factor."""
    if standing.against_sum is None:
        return 0.0
    value = standing.against_sum.value
    return max(math.log(value) if standings.world.unit == "factor" else value, 0.0)


def _card_row(standings: WorldStandings, standing: Standing, costs: Mapping[str, Cost], longest: float) -> CardRow:
    decided = VERDICTS[verdict(standings.world, standing.against_sum)]
    notes = unequal_settings(standings.world, standing.method, PLAIN_SUM)
    comparison = ", ".join([format_estimate(standings.world, standing.against_sum), *notes])
    width = round(100 * _gain(standings, standing) / longest)
    rank = _format_rank(standing.rank, interval=False)
    metrics = _metric_changes(standings, standing.method)
    return CardRow(standing.method, rank, comparison, decided, str(costs[standing.method]), width, metrics)


def _metric_changes(standings: WorldStandings, method: str) -> str:
    """Return by how much each metric is better than with the plain sum, in a world with a mean of a few metrics."""
    world = standings.world
    if world.unit != "change" or not 1 < len(world.metrics) <= FEW_METRICS:
        return ""
    sums = standings.scores[[method, PLAIN_SUM]].dropna().groupby(level="metric").sum()
    changes = []
    for metric, is_higher_better in world.metrics.items():
        change = 100 * (sums[method][metric] / sums[PLAIN_SUM][metric] - 1) * (1 if is_higher_better else -1)
        name = METRIC_NAMES[metric].rstrip(" ↑↓")
        changes.append(f"{name} {format_change(change)}\N{NO-BREAK SPACE}%")
    return f"{', '.join(changes)} (+ is better)"


def world_table(standings: WorldStandings, costs: Mapping[str, Cost]) -> PrintedTable:
    """Return the table of all methods: comparisons with both sums, mean rank, cost, and number of runs."""
    world, tuned = standings.world, any(standing.against_tuned for standing in standings.standings)
    error = "error " if world.unit == "factor" else ""  # said in the heads, which keeps the columns narrow
    heads = ["method", f"{error}against the plain sum"]
    heads += [f"{error}against the {TUNED_SUM.lower()}"] if tuned else []
    rows = []
    several = len(standings.seeds) >= SEEDS_OF_AN_INTERVAL
    for standing in standings.standings:
        row = [standing.method]
        row.append("" if standing.method == PLAIN_SUM else format_estimate(world, standing.against_sum))
        row += [format_estimate(world, standing.against_tuned)] if tuned else []
        row = [cell.removeprefix(error) for cell in row]
        row.append(_format_rank(standing.rank, interval=several))
        runs = f"{standing.runs}" + (f", {standing.diverged} diverged" if standing.diverged else "")
        if standing.problems < len(standings.problems):
            runs += f" on {standing.problems} problem{'s' if standing.problems > 1 else ''}"
        rows.append([*row, str(costs[standing.method]), runs])
    problems = f"{len(standings.problems)} problem{'s' if len(standings.problems) > 1 else ''}"
    intervals = "95 % intervals over seeds, paired" if several else "no intervals with one or two seeds"
    note = f"{problems}, {format_seeds(standings.seeds)}; {intervals}; ordered by mean rank"
    return PrintedTable([*heads, "mean rank", "cost of a step", "runs"], rows, world.title, note)


def _format_rank(rank: Estimate | None, *, interval: bool) -> str:
    if rank is None:
        return "–"
    return f"{rank.value:.1f}" + (f" [{rank.low:.1f}, {rank.high:.1f}]" if interval else "")


def run_scores_file(world: str) -> str:
    """Return the name of the file with the scores that a world compares."""
    return f"runs/leaderboard-{world}.csv"


def run_scores_csv(standings: WorldStandings) -> str:
    """Return a row per run that is compared: method, problem, metric, seed and score."""
    rows = standings.scores.melt(ignore_index=False, value_name="score").dropna(subset="score").reset_index()
    columns = ["method", "problem", "metric", "seed", "score"]
    return str(rows[columns].to_csv(index=False, float_format="%.6g"))


def leaderboard_csv(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> str:
    """Return a row per world and method."""
    rows = []
    for standings in board:
        for standing in standings.standings:
            world = standings.world
            row: dict[str, Any] = {"world": world.name, "unit": world.unit, "method": standing.method}
            for name in ("rank", "against_sum", "against_tuned"):
                estimate = getattr(standing, name)
                for part in ("value", "low", "high"):
                    key = name if part == "value" else f"{name}_{part}"
                    row[key] = None if estimate is None else getattr(estimate, part)
            cost = costs[standing.method]
            row |= {"passes": cost.passes, "relative_time": cost.time, "runs": standing.runs}
            rows.append(row | {"diverged": standing.diverged, "seeds": standing.seeds, "problems": standing.problems})
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g"))
