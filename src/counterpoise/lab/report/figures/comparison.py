"""Figures of a comparison in a user's training function."""

import numpy as np
import pandas as pd

from ...studies import Study
from ..comparison import rankings, reference_method, scores_by_seed
from ..intervals import SEEDS_OF_AN_INTERVAL, mean_interval
from ..tables import higher_is_better
from .ranking import critical_difference
from .spec import Axis, FigureSpec, Mark, Panel, Points, ReferenceLine
from .style import indexed_style

MAX_COLUMNS = 3


def figures(study: Study, frame: pd.DataFrame) -> dict[str, FigureSpec]:
    """Return the scores of all methods and, for three or more methods, critical-difference diagrams over seeds."""
    found = {study.name: scores(study, frame)}
    ranked = rankings(study, frame)
    if ranked:
        found[f"{study.name}-ranks"] = critical_difference(ranked, f"{study.title}: ranks over seeds")
    return found


def scores(study: Study, frame: pd.DataFrame) -> FigureSpec:
    """Draw each score of all methods: mean with 95 % interval, a dot per seed, and a line at the reference."""
    tables = {metric: scores_by_seed(study, frame, metric) for metric in study.metrics}
    methods = [method for method in study.methods if any(method in table for table in tables.values())]
    reference, panels = reference_method(study), []
    for metric, table in tables.items():
        marks: list[Mark] = []
        for place, method in enumerate(methods):
            values = table[method].dropna().to_numpy(dtype=np.float64)
            if not len(values):
                continue
            interval = mean_interval(values) if len(values) >= SEEDS_OF_AN_INTERVAL else None
            low, high = ([interval[0]], [interval[1]]) if interval else (None, None)
            style, y = indexed_style(0), np.full(len(values), float(place))
            marks.append(Points("", values, y, style, 3.0, faint=True))
            marks.append(Points("", [values.mean()], [place], style, 6.0, low, high, along="x", hover_texts=[method]))
        if reference in table and table[reference].notna().any():
            marks.append(ReferenceLine(float(table[reference].mean()), "vertical", reference, emphasised=True))
        ticks = [(place, _label(method, table)) for place, method in enumerate(methods)]
        panels.append(Panel(marks, "", Axis(metric), Axis(ticks=ticks, limits=(len(methods) - 0.4, -0.6))))
    better = {True: "higher", False: "lower"}
    directions = "; ".join(f"{metric[:-2]}: {better[bool(higher_is_better(metric))]} is better" for metric in tables)
    columns = min(len(panels), MAX_COLUMNS)
    rows = -(-len(panels) // columns)
    return FigureSpec(
        f"{study.title}: scores with 95 % intervals over {len(study.seeds)} seeds",
        f"{study.title}: scores of {len(methods)} methods, with a dot for each seed. {directions}.",
        panels,
        columns=columns,
        size=(max(4.0, 3.4 * columns), rows * (0.9 + 0.24 * len(methods)) + 0.4),
    )


def _label(method: str, table: pd.DataFrame) -> str:
    """Return the label of a method, with the number of its scores if it diverged at some seeds."""
    count = int(table[method].notna().sum())
    return method if count == len(table) else f"{method} ({count} of {len(table)})"
