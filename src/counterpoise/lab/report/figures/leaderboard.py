"""Figures of the leaderboard: methods by worlds, and score against cost."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..leaderboard import Estimate, Standing, WorldStandings
from ..leaderboard_cost import PASSES, Cost
from ..leaderboard_text import collapsed_methods, format_estimate, verdict
from ..leaderboard_worlds import PLAIN_SUM, World
from .spec import Axis, FigureSpec, Mark, MarkStyle, Panel, Points, ReferenceLine, TextLabel

STYLES = {
    1: ("better than the plain sum", MarkStyle("#0072B2", "o")),
    -1: ("worse", MarkStyle("#D55E00", "v")),
    0: ("undecided", MarkStyle("#888888", "s")),
}
LEAST_WORLDS = 3
RECOMMENDED = ("BPGS (gradient)", "BPGS + CAGrad")
"""Methods that were run in fewer worlds are only in the tables, except these, which the answers recommend."""
MAX_METHODS = 24
COLUMNS = 3
LEAST_TIMES = 6
"""With fewer measured times, cost is the number of backward passes."""
LETTERS = 13.5  # of a name that fit between two costs
BESIDE = 5.0  # typographic points from a point to its number
TICKS = ("1", "1, some per loss", "1 per loss")
FACTORS = tuple(digit * 10.0**power for power in range(-4, 5) for digit in (1, 3))
NEAR_FACTORS = (0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5)
"""Ticks of axes of factors, the second for factors that differ by less than 3."""
FLOOR, FLOOR_OF_FAILING = -20.0, -110.0
"""Changes below this, in %, are drawn at the edge; the second applies to worlds in which methods fail."""


def overview(board: Sequence[WorldStandings], methods: Sequence[str] = ()) -> FigureSpec:
    """Draw each method relative to the plain sum, with a panel per world. To the right is better everywhere.

    Args:
        board: The worlds.
        methods: The methods to draw, from top to bottom. Default: those of `shown_methods`.
    """
    methods = methods or shown_methods(board)
    panels = [_panel(standings, methods) for standings in board]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    return FigureSpec(
        "Methods relative to the plain sum, with 95 % intervals over seeds (to the right is better)",
        f"{len(methods)} methods in {len(board)} worlds, each relative to the plain sum, best mean rank at the top.",
        panels,
        columns=columns,
        size=(4.3 * columns, rows * (0.9 + 0.2 * len(methods)) + 0.4),
    )


def shown_methods(board: Sequence[WorldStandings]) -> list[str]:
    """Return the methods that were run in most worlds or are recommended, best first by their mean place in a world."""
    places: dict[str, list[float]] = {}
    least = min(LEAST_WORLDS, len(board))
    for standings in board:
        compared = sorted(
            (s for s in standings.standings if s.against_sum and s.method != PLAIN_SUM),
            key=lambda s: -s.against_sum.value if s.against_sum else 0.0,
        )
        for place, standing in enumerate(compared):
            places.setdefault(standing.method, []).append(place / max(len(compared) - 1, 1))
    kept = {m: float(np.mean(found)) for m, found in places.items() if len(found) >= least or m in RECOMMENDED}
    return sorted(kept, key=lambda method: kept[method])[:MAX_METHODS]


def _panel(standings: WorldStandings, methods: Sequence[str]) -> Panel:
    world = standings.world
    marks: list[Mark] = []
    for sign, (label, style) in STYLES.items():
        rows = [
            (place, standing, standing.against_sum)
            for place, method in enumerate(methods)
            if (standing := standings.find(method)) and standing.against_sum
            and verdict(world, standing.against_sum) == sign
        ]  # fmt: skip
        if rows:
            marks.append(_points(standings, label, style, rows))
    marks.append(ReferenceLine(1.0 if world.unit == "factor" else 0.0, "vertical", emphasised=True))
    shown = {place: standing for place, method in enumerate(methods) if (standing := standings.find(method))}
    marks += [
        TextLabel(_floor(standings), place, text, "left", x_offset=BESIDE)
        for place, standing in shown.items()
        if (text := _beyond_the_edge(standings, standing))
    ]
    ticks = list(enumerate(methods))
    return Panel(
        marks,
        f"{world.title} ({_seeds([standing.seeds for standing in shown.values()])})",
        _factor_axis(world, marks) if world.unit == "factor" else _change_axis(standings),
        Axis(ticks=ticks, limits=(len(methods) - 0.4, -0.6)),
    )


def _seeds(counts: Sequence[int]) -> str:
    """Return the number of seeds, or their range if it differs between methods: "1 to 3 seeds"."""
    low, high = min(counts), max(counts)
    return f"{high if low == high else f'{low} to {high}'}\N{NO-BREAK SPACE}seed{'s' if high > 1 else ''}"


def _beyond_the_edge(standings: WorldStandings, standing: Standing) -> str:
    """Return the change of a method that is drawn at the edge: "−34 %"; empty for others."""
    estimate, factors = standing.against_sum, standings.world.unit == "factor"
    if estimate is None or factors or estimate.value >= _floor(standings):
        return ""
    return f"{estimate.value:.0f}\N{NO-BREAK SPACE}%".replace("-", "−")


def _change_axis(standings: WorldStandings) -> Axis:
    """Return an axis of changes; with few numbers where methods fail, which fit below a narrow panel."""
    ticks = [(value, f"{value:g}".replace("-", "−")) for value in (-100.0, -50.0, 0.0)]
    return Axis(axis_label(standings.world), ticks=ticks if _floor(standings) == FLOOR_OF_FAILING else None)


def _factor_axis(world: World, marks: Sequence[Mark]) -> Axis:
    """Return a logarithmic axis with a few numbers: by default, plotly labels the digits between them, too."""
    values = [1.0, *(value for mark in marks if isinstance(mark, Points) for value in mark.x)]
    ticks = [(factor, f"{factor:g}") for factor in _tick_factors(min(values), max(values))]
    return Axis(axis_label(world), log=True, ticks=ticks)


def _tick_factors(low: float, high: float) -> list[float]:
    """Return round factors from slightly below the lowest to slightly above the highest value."""
    factors, margin = (NEAR_FACTORS, 1.1) if high < 3 * low else (FACTORS, 2.0)
    return [factor for factor in factors if low / margin < factor < high * margin]


def _points(
    standings: WorldStandings, label: str, style: MarkStyle, rows: Sequence[tuple[int, Standing, Estimate]]
) -> Points:
    world, floor = standings.world, _floor(standings)
    values, low, high = (
        [max(getattr(estimate, name), floor) for _, _, estimate in rows] for name in ("value", "low", "high")
    )
    places = [place for place, _, _ in rows]
    texts = [f"{standing.method}: {format_estimate(world, estimate)}" for _, standing, estimate in rows]
    return Points(label, values, places, style, 5.0, low, high, along="x", hover_texts=texts, complete=True)


def _floor(standings: WorldStandings) -> float:
    if standings.world.unit == "factor":
        return 0.0
    return FLOOR_OF_FAILING if collapsed_methods(standings) else FLOOR


def axis_label(world: World) -> str:
    return "error: sum / method" if world.unit == "factor" else "change of score (%)"


def frontier(board: Sequence[WorldStandings], costs: Mapping[str, Cost]) -> FigureSpec:
    """Draw the scores against the cost of a step, with the best method of each cost named."""
    panels = [_frontier_panel(standings, costs) for standings in board]
    columns = min(COLUMNS, len(panels))
    return FigureSpec(
        "Score against cost: the best method of each cost is named, the dashed line is the plain sum",
        "Scores relative to the plain sum against the cost of a step, with a panel per world. FAMO also needs a second "
        "forward pass.",
        panels,
        columns=columns,
        size=(3.7 * columns, 0.4 + 2.9 * -(-len(panels) // columns)),
    )


def _frontier_panel(standings: WorldStandings, costs: Mapping[str, Cost]) -> Panel:
    world = standings.world
    factors = world.unit == "factor"
    heights = {
        s.method: float(np.log10(s.against_sum.value)) if factors else max(s.against_sum.value, _floor(standings))
        for s in standings.ranked
        if s.against_sum
    }
    low, high = min(0.0, *heights.values()), max(0.0, *heights.values())
    span = (high - low) or 1.0
    marks: list[Mark] = [ReferenceLine(0.0, "horizontal", emphasised=True)]
    times = {method: time for method in heights if (time := costs[method].time) is not None}
    positions = dict(times)
    if len(times) >= LEAST_TIMES:
        x_axis = Axis("time of a step, relative to the plain sum")
        frontier_methods = [
            m for m in times if not any(times[o] < times[m] and heights[o] >= heights[m] for o in times)
        ]
        names, unit = {m: times[m] for m in frontier_methods}, (max(times.values()) - min(times.values())) / 2 or 1.0
    else:
        x_axis = Axis(
            "backward passes of a step", ticks=list(enumerate(TICKS)), limits=(-0.6, len(TICKS) - 0.4), grid=False
        )
        names, unit, positions = {}, 1.0, {}
        for place, kind in enumerate(PASSES):
            group = [method for method in heights if costs[method].passes == kind]
            if group:
                spread = np.linspace(-0.15, 0.15, len(group)) if len(group) > 1 else np.zeros(1)
                positions |= dict(zip(group, place + spread, strict=True))
                names[max(group, key=lambda method: heights[method])] = place
    marks.append(_named_points(positions, heights, standings))
    marks += _name_labels(names, heights, unit, span)
    marks += [
        TextLabel(x, heights[method], text, "left", x_offset=BESIDE)
        for method, x in positions.items()
        if (standing := standings.find(method)) and (text := _beyond_the_edge(standings, standing))
    ]
    y_ticks = [(np.log10(factor), f"{factor:g}") for factor in _tick_factors(10**low, 10**high)] if factors else None
    y_axis = Axis(axis_label(world), ticks=y_ticks, limits=(low - 0.08 * span, high + 0.24 * span))
    return Panel(marks, world.title, x_axis, y_axis)


def _name_labels(
    places: Mapping[str, float], heights: Mapping[str, float], unit: float, span: float
) -> list[TextLabel]:
    """Return the names of methods above their points, where they cross neither the last name nor the plain sum.

    Args:
        places: The methods with their horizontal positions.
        heights: The vertical positions of methods.
        unit: Horizontal distance of about `LETTERS` letters.
        span: Height of the panel.
    """
    labels: list[TextLabel] = []
    for method, x in places.items():
        bottom = heights[method] + 0.06 * span
        if bottom < 0.02 * span < bottom + 0.1 * span:
            bottom = 0.02 * span
        last = labels[-1] if labels else None
        beside = last and len(method) + len(last.text) > 2 * LETTERS * abs(x - last.x) / unit
        if last and beside and abs(bottom - last.y) < 0.1 * span:
            bottom = last.y + 0.1 * span
        labels.append(TextLabel(x, bottom, method, "center", "bottom"))
    return labels


def _named_points(places: Mapping[str, float], heights: Mapping[str, float], standings: WorldStandings) -> Points:
    y = [heights[method] for method in places]
    texts = [f"{method}: {_comparison(standings, method)}" for method in places]
    return Points("", list(places.values()), y, STYLES[1][1], 5.0, hover_texts=texts, complete=True)


def _comparison(standings: WorldStandings, method: str) -> str:
    standing = standings.find(method)
    return "" if standing is None else format_estimate(standings.world, standing.against_sum)
