"""Training curves: metrics of each method against the epoch."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...studies import Condition, Study
from ..tables import METRIC_NAMES
from .spec import Axis, FigureSpec, Line, Mark, MarkStyle, Panel, Points, band_edges
from .style import method_style

SKIPPED_EPOCHS = 2  # the first epochs do not determine the limits of a panel: they would flatten the rest


def curves(study: Study, condition: Condition, histories: pd.DataFrame) -> FigureSpec:
    """Draw a panel per recorded metric, and one for the sum of losses that early stopping uses, unless it is a metric.

    A line is the mean over seeds up to the last epoch that all of them reached, with a band of ± 1 sd. A marker is
    where a run ended.
    """
    names = {metric: METRIC_NAMES[metric] for metric in study.metrics if metric in histories}
    if study.schedule.monitor.removeprefix("-") not in names:
        names["watched"] = "sum of monitored losses ↓"
    styles = styles_of_run_methods(study, histories)
    panels = [metric_panel(histories, styles, metric, name) for metric, name in names.items()]
    return FigureSpec(
        f"{with_seeds(condition_title(study, condition), histories)}; markers: end of a run",
        f"{study.title}: held-out metrics and the summed loss of each method against the epoch.",
        panels,
        columns=2,
        size=(7.2, 5.8),
    )


def styles_of_run_methods(study: Study, runs: pd.DataFrame) -> dict[str, MarkStyle]:
    """Return the styles of the methods that were run, in the order of the study."""
    run = set(runs["method"])
    return {method: method_style(method) for method in study.methods if method in run}


def condition_title(study: Study, condition: Condition) -> str:
    return f"{study.title}, {condition.part or condition.key}" if len(study.conditions) > 1 else study.title


def with_seeds(title: str, runs: pd.DataFrame) -> str:
    """Return the title with the number of seeds, which may differ between methods."""
    seeds, counts = runs["seed"].unique(), runs.groupby("method")["seed"].nunique()
    low, high = counts.min(), counts.max()
    number = f"{high}" if low == high else f"{low} to {high}"
    return f"{title} ({f'{number} seeds, ± 1 sd' if len(seeds) > 1 else f'seed {seeds[0]}'})"


def metric_panel(histories: pd.DataFrame, styles: Mapping[str, MarkStyle], metric: str, title: str) -> Panel:
    """Draw one metric of some methods against the epoch."""
    marks = [
        m
        for method, style in styles.items()
        for m in band(method, histories[histories["method"] == method], metric, style)
    ]
    later = (
        histories.loc[histories["epoch"] > min(SKIPPED_EPOCHS, histories["epoch"].max() - 1), metric]
        .dropna()
        .astype(float)
    )
    limits = None
    if len(later):
        low, high = later.quantile(0.002), later.quantile(0.998)
        pad = 0.06 * (high - low) or 0.01
        limits = (float(low - pad), float(high + pad))
    return Panel(marks, title, Axis("epoch"), Axis(limits=limits))


def band(label: str, runs: pd.DataFrame, column: str, style: MarkStyle) -> list[Mark]:
    """Return the mean over seeds ± 1 sd up to the last common epoch, and markers at the ends if these differ."""
    epochs, row = np.unique(runs["epoch"].to_numpy(float), return_inverse=True)
    seeds, place = np.unique(runs["seed"].to_numpy(), return_inverse=True)
    table = np.full((len(epochs), len(seeds)), np.nan)
    table[row, place] = runs[column].to_numpy(float)
    known = ~np.isnan(table).any(1)
    if not known.any():
        return []
    together = table[known]
    mean = together.mean(1)
    edges = band_edges(mean, together.std(1, ddof=1)) if len(seeds) > 1 else (None, None)
    marks: list[Mark] = [Line(label, epochs[known], mean, style, *edges)]
    ends = np.zeros(len(seeds), int)
    np.maximum.at(ends, place, row)
    if len(set(ends)) > 1:
        marks.append(Points(label, epochs[ends], table[ends, range(len(seeds))], style))
    return marks
