"""Figures of a ranking: the critical-difference diagram, and what graded factors cost."""

from collections.abc import Sequence

import numpy as np

from ..ranks import Ranking, changes
from .spec import GREY, INK, Axis, Dots, Drawing, Line, Look, Mark, Panel, Rule, Words
from .style import look

LINE = 0.28  # inches between two labels


def critical_difference(found: Sequence[Ranking], title: str) -> Drawing:
    """Methods on a line by their average rank, best on the left; a bar joins those without a critical difference."""
    heights = [LINE * (-(-len(r.ranks) // 2)) + 0.13 * len(r.cliques()) + 1.05 for r in found]
    leader = "; ".join(f"{r.part}: {r.ranks.index[0]} first with {r.ranks.iloc[0]:.2f}" for r in found)
    return Drawing(
        title,
        f"Critical-difference diagram, average ranks over data sets. {leader}.",
        [_diagram(ranking, height) for ranking, height in zip(found, heights, strict=True)],
        size=(7.2, sum(heights) + 0.3),
    )


def _diagram(ranking: Ranking, height: float) -> Panel:
    """Coordinates are ranks across and inches down from the line."""
    count, bars = len(ranking.ranks), ranking.cliques()
    marks: list[Mark] = [Line("", [1, count], [0, 0], INK, width=1.0)]
    for tick in range(1, count + 1):
        marks += [Line("", [tick, tick], [-0.06, 0], INK, width=0.8), Words(tick, -0.09, str(tick), rise="bottom")]
    marks += [
        Line("", [1, 1 + ranking.difference], [-0.42, -0.42], INK, width=1.6),
        Words(1, -0.48, f"critical difference {ranking.difference:.2f}", "left", "bottom"),
        Words(count, -0.48, ranking.part, "right", "bottom", bold=True),
    ]
    for level, (first, last) in enumerate(bars):
        depth = 0.12 + 0.13 * level
        marks.append(Line("", [ranking.ranks[first] - 0.06, ranking.ranks[last] + 0.06], [depth] * 2, GREY, width=3.5))
    top, half = 0.12 + 0.13 * len(bars) + 0.12, -(-count // 2)
    for place, (method, value) in enumerate(ranking.ranks.items()):
        left = place < half
        depth = top + LINE * (place if left else count - 1 - place)
        edge = 1 - 0.05 * (count - 1) if left else count + 0.05 * (count - 1)
        line = Look(look(str(method)).colour)
        marks.append(Line("", [value, value, edge], [0, depth, depth], line, width=1.1))
        text = f"{method}  {value:.2f}" if left else f"{value:.2f}  {method}"
        marks.append(Words(edge, depth, text, "right" if left else "left", away=-4 if left else 4))
    margin = 0.34 * (count - 1)
    across, down = Axis(limits=(1 - margin, count + margin)), Axis(limits=(height - 0.72, -0.72))
    return Panel(marks, "", across, down, bare=True, tall=height)


def cost_of_factors(first: Ranking, second: Ranking, title: str) -> Drawing:
    """What each method's mean score loses under graded factors, the most careless on top; a dot for each data set."""
    table = changes(first, second)
    # Single data sets may lose very much: they are drawn at the edge.
    low, high = np.nanquantile((first.scores - second.scores)[list(table.index)], [0.02, 0.97])
    low, high = min(low, table["low"].min(), 0.0), max(high, table["high"].max(), 0.0)
    marks: list[Mark] = []
    for place, (method, row) in enumerate(table.iterrows()):
        lost = (first.scores[method] - second.scores[method]).dropna().clip(low, high)
        own = look(str(method)).colour
        at = np.full(len(lost), float(place))
        words = [str(name) for name in lost.index]
        marks.append(Dots("", lost.to_numpy(), at, Look(own, "."), 5, faint=True, words=words))
        marks.append(Dots("", [row.lost], [place], Look(own), 7, [row.low], [row.high], along="x", words=[str(method)]))
    pad = 0.04 * (high - low)
    return Drawing(
        f"{title}: means over data sets with 95 % intervals; small dots: data sets",
        f"{title}: how much score each method loses when the losses get graded factors.",
        [
            Panel(
                [*marks, Rule(0, "y")],
                "",
                Axis("loss of score under graded factors", limits=(low - pad, high + pad)),
                Axis(ticks=list(enumerate(map(str, table.index))), limits=(len(table) - 0.4, -0.6), grid=False),
            )
        ],
        size=(7.2, 1.0 + 0.3 * len(table)),
    )
