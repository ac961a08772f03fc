"""Figures of a ranking: the critical-difference diagram, and what graded factors cost."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .ranks import Ranking, changes
from .style import RC, colour

INK = "#222222"
LINE = 0.28  # inches between two labels


def critical_difference(found: Sequence[Ranking], title: str) -> Figure:
    """Methods on a line by their average rank, best on the left; a bar joins those without a critical difference."""
    heights = [LINE * (-(-len(r.ranks) // 2)) + 0.13 * len(r.cliques()) + 1.05 for r in found]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, sum(heights) + 0.3), layout="constrained")
        axes = figure.subplots(len(found), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axis, ranking, height in zip(axes[:, 0], found, heights, strict=True):
            _diagram(axis, ranking, height)
        figure.suptitle(title, fontsize=10)
    return figure


def _diagram(axis: Axes, ranking: Ranking, height: float) -> None:
    """Coordinates are ranks across and inches down from the line."""
    count = len(ranking.ranks)
    bars = ranking.cliques()
    axis.axis("off")
    margin = 0.34 * (count - 1)
    axis.set_xlim(1 - margin, count + margin)
    axis.set_ylim(height - 0.72, -0.72)
    axis.hlines(0, 1, count, color=INK, linewidth=1.0)
    for tick in range(1, count + 1):
        axis.vlines(tick, -0.06, 0, color=INK, linewidth=0.8)
        axis.annotate(str(tick), (tick, -0.09), ha="center", va="bottom", fontsize=8)
    axis.hlines(-0.42, 1, 1 + ranking.difference, color=INK, linewidth=1.6)
    axis.annotate(f"critical difference {ranking.difference:.2f}", (1, -0.48), ha="left", va="bottom", fontsize=8)
    axis.annotate(ranking.part, (count, -0.48), ha="right", va="bottom", fontsize=9, weight="bold")
    for level, (first, last) in enumerate(bars):
        depth = 0.12 + 0.13 * level
        ends = ranking.ranks[first] - 0.06, ranking.ranks[last] + 0.06
        axis.hlines(depth, *ends, color="#888888", linewidth=3.5)
    top = 0.12 + 0.13 * len(bars) + 0.12
    half = -(-count // 2)
    for place, (method, value) in enumerate(ranking.ranks.items()):
        left = place < half
        depth = top + LINE * (place if left else count - 1 - place)
        edge = 1 - 0.05 * (count - 1) if left else count + 0.05 * (count - 1)
        axis.plot([value, value, edge], [0, depth, depth], color=colour(str(method)), linewidth=1.1)
        text = f"{method}  {value:.2f}" if left else f"{value:.2f}  {method}"
        axis.annotate(
            text, (edge, depth), (-4 if left else 4, 0), textcoords="offset points", fontsize=9,
            ha="right" if left else "left", va="center",
        )  # fmt: skip


def cost_of_factors(first: Ranking, second: Ranking, title: str) -> Figure:
    """What each method's mean score loses under graded factors, the most careless on top; a dot for each data set."""
    table = changes(first, second)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 0.9 + 0.3 * len(table)), layout="constrained")
        axis = figure.subplots()
        # Single data sets may lose very much: they are drawn at the edge.
        low, high = np.nanquantile((first.scores - second.scores)[list(table.index)], [0.02, 0.97])
        low, high = min(low, table["low"].min(), 0.0), max(high, table["high"].max(), 0.0)
        for place, (method, row) in enumerate(table.iterrows()):
            lost = (first.scores[method] - second.scores[method]).dropna().clip(low, high)
            axis.plot(lost, np.full(len(lost), place), ".", color=colour(str(method)), alpha=0.45, markersize=5)
            axis.plot([row.low, row.high], [place, place], color=INK, linewidth=1.4)
            axis.plot(row.lost, place, "o", color=colour(str(method)), markersize=7, markeredgecolor=INK)
        axis.axvline(0, color=INK, linewidth=0.8)
        axis.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        axis.set_yticks(range(len(table)), list(table.index))
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_xlabel(
            "loss of score under graded factors (mean over data sets, 95 % interval; small dots: data sets)"
        )
        axis.set_title(title)
    return figure
