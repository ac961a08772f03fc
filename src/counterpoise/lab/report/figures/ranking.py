"""Figures of a ranking: critical-difference diagram, loss of score under graded factors."""

from collections.abc import Sequence

import numpy as np

from ..ranks import Ranking, changes
from .spec import (
    GREY_STYLE,
    TEXT_STYLE,
    Axis,
    FigureSpec,
    Line,
    Mark,
    MarkStyle,
    Panel,
    Points,
    ReferenceLine,
    TextLabel,
)
from .style import method_style

LABEL_SPACING = 0.28  # inches


def critical_difference(rankings: Sequence[Ranking], title: str) -> FigureSpec:
    """Draw methods on an axis by average rank, best on the left. Bars join methods without a critical difference."""
    heights = [LABEL_SPACING * (-(-len(r.ranks) // 2)) + 0.13 * len(r.cliques()) + 1.05 for r in rankings]
    leader = "; ".join(f"{r.part}: {r.ranks.index[0]} first with {r.ranks.iloc[0]:.2f}" for r in rankings)
    return FigureSpec(
        title,
        f"Critical-difference diagram, average ranks over data sets. {leader}.",
        [_diagram(ranking, height) for ranking, height in zip(rankings, heights, strict=True)],
        size=(7.2, sum(heights) + 0.3),
    )


def _diagram(ranking: Ranking, height: float) -> Panel:
    """Draw one diagram. The coordinates are ranks (x) and inches below the axis (y)."""
    count, bars = len(ranking.ranks), ranking.cliques()
    marks: list[Mark] = [Line("", [1, count], [0, 0], TEXT_STYLE, width=1.0)]
    for tick in range(1, count + 1):
        marks += [
            Line("", [tick, tick], [-0.06, 0], TEXT_STYLE, width=0.8),
            TextLabel(tick, -0.09, str(tick), vertical_anchor="bottom"),
        ]
    marks += [
        Line("", [1, 1 + ranking.difference], [-0.42, -0.42], TEXT_STYLE, width=1.6),
        TextLabel(1, -0.48, f"critical difference {ranking.difference:.2f}", "left", "bottom"),
        TextLabel(count, -0.48, ranking.part, "right", "bottom", bold=True),
    ]
    for level, (first, last) in enumerate(bars):
        depth = 0.12 + 0.13 * level
        marks.append(
            Line("", [ranking.ranks[first] - 0.06, ranking.ranks[last] + 0.06], [depth] * 2, GREY_STYLE, width=3.5)
        )
    top, half = 0.12 + 0.13 * len(bars) + 0.12, -(-count // 2)
    for place, (method, value) in enumerate(ranking.ranks.items()):
        left = place < half
        depth = top + LABEL_SPACING * (place if left else count - 1 - place)
        edge = 1 - 0.05 * (count - 1) if left else count + 0.05 * (count - 1)
        line = MarkStyle(method_style(str(method)).colour)
        marks.append(Line("", [value, value, edge], [0, depth, depth], line, width=1.1))
        text = f"{method}  {value:.2f}" if left else f"{value:.2f}  {method}"
        marks.append(TextLabel(edge, depth, text, "right" if left else "left", x_offset=-4 if left else 4))
    margin = 0.56 * (count - 1)  # for the names
    across, down = Axis(limits=(1 - margin, count + margin)), Axis(limits=(height - 0.72, -0.72))
    return Panel(marks, "", across, down, hide_axes=True, relative_height=height)


def cost_of_factors(first: Ranking, second: Ranking, title: str) -> FigureSpec:
    """Draw how much mean score each method loses under graded factors, with a small dot per data set."""
    table = changes(first, second)
    # Outliers are drawn at the edge of the panel.
    low, high = np.nanquantile((first.scores - second.scores)[list(table.index)], [0.02, 0.97])
    low, high = min(low, table["low"].min(), 0.0), max(high, table["high"].max(), 0.0)
    marks: list[Mark] = []
    for place, (method, row) in enumerate(table.iterrows()):
        lost = (first.scores[method] - second.scores[method]).dropna().clip(low, high)
        colour, name = method_style(str(method)).colour, [str(method)]
        y, sets = np.full(len(lost), float(place)), [str(data) for data in lost.index]
        marks.append(Points("", lost.to_numpy(), y, MarkStyle(colour, "."), 5, faint=True, hover_texts=sets))
        interval = [row.low], [row.high]
        marks.append(Points("", [row.lost], [place], MarkStyle(colour), 7, *interval, along="x", hover_texts=name))
    pad = 0.04 * (high - low)
    return FigureSpec(
        f"{title}: means over data sets with 95 % intervals; small dots: data sets",
        f"{title}: how much score each method loses when the losses get graded factors.",
        [
            Panel(
                [*marks, ReferenceLine(0, "vertical")],
                "",
                Axis("loss of score under graded factors", limits=(low - pad, high + pad)),
                Axis(ticks=list(enumerate(map(str, table.index))), limits=(len(table) - 0.4, -0.6), grid=False),
            )
        ],
        size=(7.2, 1.0 + 0.3 * len(table)),
    )
