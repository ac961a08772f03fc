"""The figures of dense prediction: validation curves, scores side by side, Δ_M."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...metrics.dense import UP
from ...studies import Condition, Study
from ..tables import NAMES, number
from .spec import Axis, Bars, Cells, Dots, Drawing, Look, Mark, Panel, Rule
from .style import look
from .training import heading, metric_panel, present, titled

CURVES = ("miou", "abs_rel", "angle", "total_loss")
PAPERS = "the paper's mean"


def curves(title: str, found: pd.DataFrame, looks: Mapping[str, Look]) -> Drawing:
    """Held-out metrics from epoch to epoch."""
    return Drawing(
        title,
        f"{title}: mIoU, relative depth error, angle of normals and total loss on held-out images by epoch.",
        [metric_panel(found, looks, metric, NAMES[metric]) for metric in CURVES],
        columns=2,
        size=(7.2, 5.4),
    )


def scores(study: Study, condition: Condition, frame: pd.DataFrame) -> Drawing:
    """A panel for each metric of the table: each method's mean, a dot for each seed, the paper's mean as a line."""
    metrics = [m for m in study.metrics if frame[m].notna().any() and m != "delta_m"]
    panels = [_bars(study, condition, frame, metric) for metric in metrics]
    columns = 3 if len(panels) > 4 else 2
    return Drawing(
        heading(titled(study, condition), frame),
        f"{study.title}: each method's mean of {len(metrics)} metrics as bars, single seeds as dots.",
        panels,
        columns=columns,
        size=(2.3 * columns + 0.6, 0.9 + 2.1 * (-(-len(panels) // columns))),
    )


def delta(study: Study, condition: Condition, frame: pd.DataFrame) -> Drawing:
    """Δ_M of each method against Static, positive = better; where the table has no Static, against the main table's."""
    known = frame[frame["delta_m"].notna()]
    against = "Static" if "Static" in set(known["method"]) else "Static of the main table"
    panel = _bars(study, condition, known, "delta_m")
    return Drawing(
        heading(titled(study, condition), known),
        f"{study.title}: Δ_M of each method against {against}; above zero is better.",
        [Panel([*panel.marks, Rule(0, "x")], f"{panel.title} against {against}", panel.x, panel.y)],
        size=(5.0, 3.4),
    )


def _bars(study: Study, condition: Condition, frame: pd.DataFrame, metric: str) -> Panel:
    marks: list[Mark] = []
    said: dict[int, float] = {}
    for place, method in enumerate(present(study, frame)):
        values = frame.loc[frame["method"] == method, metric].dropna().to_numpy(dtype=float)
        if not len(values):
            continue
        mean, sd = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
        edges = ([mean - sd], [mean + sd]) if sd else (None, None)
        marks.append(Bars(method, [place], [mean], look(method), 0.75, *edges))
        if len(values) > 1:
            marks.append(Dots("", np.full(len(values), place), values, Look("ink", "."), 3, faint=True))
        theirs = study.paper.get(metric, {}).get(method, {}).get(condition.key)
        if theirs:
            said[place] = theirs[0]
    if said:
        marks.append(Dots(PAPERS, list(said), list(said.values()), Look("ink", "_"), 13))
    return Panel(marks, NAMES[metric], Axis(ticks=[], grid=False), Axis())


def heatmap(study: Study, condition: Condition, frame: pd.DataFrame) -> Drawing:
    """Mean metrics, coloured from the worst method (light) to the best (dark) of each column."""
    metrics = [m for m in study.metrics if frame[m].notna().any()]
    order = list(present(study, frame))
    means = frame.groupby("method")[metrics].mean().loc[order]
    signs = np.array([1 if UP.get(m, m == "delta_m") else -1 for m in metrics])
    good = means.to_numpy() * signs
    low, high = np.nanmin(good, 0), np.nanmax(good, 0)
    shade = (good - low) / np.where(high > low, high - low, 1)
    texts = [[number(value) for value in row] for row in means.to_numpy()]
    names = [(float(i), NAMES[m]) for i, m in enumerate(metrics)]
    return Drawing(
        f"{heading(titled(study, condition), frame).replace(', ± 1 sd', '')}: darker is better, column by column",
        f"{study.title}: mean metrics of each method; the darker a cell, the nearer to the best of its column.",
        [
            Panel(
                [Cells(shade, texts)],
                "",
                Axis(ticks=names, grid=False),
                Axis(ticks=list(enumerate(order)), limits=(len(order) - 0.5, -0.5), grid=False),
            )
        ],
        size=(0.95 * len(metrics) + 1.9, 0.42 * len(order) + 1.2),
    )
