"""Training curves: what each method's metrics do from epoch to epoch."""

from collections.abc import Mapping

import pandas as pd

from ...studies import Condition, Study
from ..tables import NAMES
from .spec import Axis, Dots, Drawing, Line, Look, Mark, Panel, interval
from .style import look

FIRST = 2  # epochs that may lie outside a panel: they would flatten all that follows


def curves(study: Study, condition: Condition, found: pd.DataFrame) -> Drawing:
    """A panel for each metric, and one for the summed losses that early stopping watches.

    A line is the mean over seeds as far as all of them were trained, its band ± 1 sd; a mark is where a run ended.
    """
    names = {**{metric: NAMES[metric] for metric in study.metrics}, "watched": "sum of watched losses ↓"}
    panels = [metric_panel(found, present(study, found), metric, name) for metric, name in names.items()]
    return Drawing(
        f"{heading(titled(study, condition), found)}; marks: where runs ended",
        f"{study.title}: held-out metrics and the summed loss of each method from epoch to epoch.",
        panels,
        columns=2,
        size=(7.2, 5.8),
    )


def present(study: Study, found: pd.DataFrame) -> dict[str, Look]:
    """The methods that were run, as the study lists them, and how each looks."""
    there = set(found["method"])
    return {method: look(method) for method in study.methods if method in there}


def titled(study: Study, condition: Condition) -> str:
    return f"{study.title}, {condition.part or condition.key}" if len(study.conditions) > 1 else study.title


def heading(title: str, found: pd.DataFrame) -> str:
    seeds = sorted(found["seed"].unique())
    which = f"{len(seeds)} seeds, ± 1 sd" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{title} ({which})"


def metric_panel(found: pd.DataFrame, looks: Mapping[str, Look], metric: str, title: str) -> Panel:
    """One metric of some methods against the epoch."""
    marks = [m for method, own in looks.items() for m in band(method, found[found["method"] == method], metric, own)]
    later = found.loc[found["epoch"] > min(FIRST, found["epoch"].max() - 1), metric].dropna().astype(float)
    limits = None
    if len(later):
        low, high = later.quantile(0.002), later.quantile(0.998)
        pad = 0.06 * (high - low) or 0.01
        limits = (float(low - pad), float(high + pad))
    return Panel(marks, title, Axis("epoch"), Axis(limits=limits))


def band(label: str, runs: pd.DataFrame, column: str, drawn: Look) -> list[Mark]:
    """The mean over seeds as far as all were trained, ± 1 sd; and, where they stopped at different times, where."""
    table = runs.set_index(["epoch", "seed"])[column].astype(float).unstack()
    together = table.dropna()
    if not len(together):
        return []
    mean, sd = together.mean(axis=1).to_numpy(), together.std(axis=1, ddof=1).fillna(0.0).to_numpy()
    edges = interval(mean, sd) if table.shape[1] > 1 else (None, None)
    marks: list[Mark] = [Line(label, together.index.to_numpy(float), mean, drawn, *edges)]
    ends = runs.loc[runs.groupby("seed")["epoch"].idxmax()]
    if ends["epoch"].nunique() > 1:
        marks.append(Dots(label, ends["epoch"].to_numpy(float), ends[column].to_numpy(float), drawn))
    return marks
