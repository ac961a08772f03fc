"""Figures of the dense prediction studies: validation curves, scores, Δ_M."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...metrics.dense import HIGHER_IS_BETTER
from ...studies import Condition, Study
from ..tables import METRIC_NAMES, format_number
from .spec import TEXT_COLOUR, Axis, Bars, FigureSpec, Heatmap, Mark, MarkStyle, Panel, Points, ReferenceLine
from .style import method_style
from .training import condition_title, metric_panel, styles_of_run_methods, with_seeds

CURVES = ("miou", "abs_rel", "angle", "total_loss")
PAPER_LABEL = "the paper's mean"


def curves(title: str, histories: pd.DataFrame, styles: Mapping[str, MarkStyle]) -> FigureSpec:
    """Draw held-out metrics against the epoch."""
    return FigureSpec(
        title,
        f"{title}: mIoU, relative depth error, angle of normals and total loss on held-out images by epoch.",
        [metric_panel(histories, styles, metric, METRIC_NAMES[metric]) for metric in CURVES],
        columns=2,
        size=(7.2, 5.4),
    )


def scores(study: Study, condition: Condition, frame: pd.DataFrame) -> FigureSpec | None:
    """Draw a panel per metric: bars for means, dots for single seeds, lines for the paper's means.

    Return None if no metric is known, because all runs diverged.
    """
    metrics = [m for m in study.metrics if frame[m].notna().any() and m != "delta_m"]
    if not metrics:
        return None
    panels = [_bars(study, condition, frame, metric) for metric in metrics]
    columns = 3 if len(panels) > 4 else 2
    return FigureSpec(
        with_seeds(condition_title(study, condition), frame),
        f"{study.title}: each method's mean of {len(metrics)} metrics as bars, single seeds as dots.",
        panels,
        columns=columns,
        size=(2.3 * columns + 0.6, 0.9 + 2.1 * (-(-len(panels) // columns))),
    )


def delta(study: Study, condition: Condition, frame: pd.DataFrame) -> FigureSpec:
    """Draw Δ_M of each method against Static of this table, or of the main table if this one has none."""
    known = frame[frame["delta_m"].notna()]
    against = "Static" if "Static" in set(known["method"]) else "Static of the main table"
    panel = _bars(study, condition, known, "delta_m")
    return FigureSpec(
        with_seeds(condition_title(study, condition), known),
        f"{study.title}: Δ_M of each method against {against}; above zero is better.",
        [Panel([*panel.marks, ReferenceLine(0, "horizontal")], f"{panel.title} against {against}", panel.x, panel.y)],
        size=(5.0, 3.4),
    )


def _bars(study: Study, condition: Condition, frame: pd.DataFrame, metric: str) -> Panel:
    marks: list[Mark] = []
    paper_means: dict[int, float] = {}
    for place, method in enumerate(styles_of_run_methods(study, frame)):
        values = frame.loc[frame["method"] == method, metric].dropna().to_numpy(dtype=float)
        if not len(values):
            continue
        mean, sd = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
        edges = ([mean - sd], [mean + sd]) if sd else (None, None)
        marks.append(Bars(method, [place], [mean], method_style(method), 0.75, *edges))
        if len(values) > 1:
            marks.append(Points("", np.full(len(values), place), values, MarkStyle(TEXT_COLOUR, "."), 3, faint=True))
        paper = study.paper.get(metric, {}).get(method, {}).get(condition.key)
        if paper:
            paper_means[place] = paper[0]
    if paper_means:
        marks.append(
            Points(PAPER_LABEL, list(paper_means), list(paper_means.values()), MarkStyle(TEXT_COLOUR, "_"), 13)
        )
    return Panel(marks, METRIC_NAMES[metric], Axis(ticks=[], grid=False), Axis())


def heatmap(study: Study, condition: Condition, frame: pd.DataFrame) -> FigureSpec | None:
    """Draw mean metrics, shaded from the worst (light) to the best (dark) method of each column.

    Return None if no metric is known, because all runs diverged.
    """
    metrics = [m for m in study.metrics if frame[m].notna().any()]
    if not metrics:
        return None
    order = list(styles_of_run_methods(study, frame))
    means = frame.groupby("method")[metrics].mean().loc[order]
    signs = np.array([1 if HIGHER_IS_BETTER.get(m, m == "delta_m") else -1 for m in metrics])
    oriented = means.to_numpy() * signs
    low, high = np.nanmin(oriented, 0), np.nanmax(oriented, 0)
    shade = (oriented - low) / np.where(high > low, high - low, 1)
    texts = [[format_number(value) for value in row] for row in means.to_numpy()]
    title = with_seeds(condition_title(study, condition), frame).replace(", ± 1 sd", "")
    names = [(float(i), METRIC_NAMES[m]) for i, m in enumerate(metrics)]
    return FigureSpec(
        f"{title}: darker is better, column by column",
        f"{study.title}: mean metrics of each method; darker cells are closer to the best of their column.",
        [
            Panel(
                [Heatmap(shade, texts)],
                "",
                Axis(ticks=names, grid=False),
                Axis(ticks=list(enumerate(order)), limits=(len(order) - 0.5, -0.5), grid=False),
            )
        ],
        size=(0.95 * len(metrics) + 1.9, 0.42 * len(order) + 1.2),
    )
