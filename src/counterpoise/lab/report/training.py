"""Training curves: what each method's metrics do from epoch to epoch."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..studies import Condition, Study
from .style import RC, colour, mark
from .tables import NAMES

FIRST = 2  # epochs that may lie outside a panel: they would flatten all that follows


def curves(study: Study, condition: Condition, found: pd.DataFrame) -> Figure:
    """A panel for each metric, and one for the summed losses that early stopping watches.

    A line is the mean over seeds as far as all of them were trained, its band ± 1 sd; a mark is where a run ended.
    """
    panels = {**{metric: NAMES[metric] for metric in study.metrics}, "loss": "sum of watched losses ↓"}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 5.6), layout="constrained")
        axes = figure.subplots(2, -(-len(panels) // 2), sharex=True).flatten()
        for axis, (metric, name) in zip(axes, panels.items(), strict=False):
            for method in study.methods:
                _curve(axis, method, found[found["method"] == method], metric)
            axis.set_title(name)
            _limits(axis, found[metric][found["epoch"] > FIRST])
        for axis in axes[-2:]:
            axis.set_xlabel("epoch")
        seeds = found["seed"].nunique()
        figure.suptitle(
            f"{study.title}, {condition.part} ({seeds} seeds, ± 1 sd; marks: where runs ended)", fontsize=10
        )
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _curve(axis: Axes, method: str, runs: pd.DataFrame, metric: str) -> None:
    if not len(runs):
        return
    table = runs.pivot(index="epoch", columns="seed", values=metric).astype(float)
    together = table.dropna()
    mean, sd = together.mean(axis=1), together.std(axis=1, ddof=1).fillna(0.0)
    line = {key: value for key, value in mark(method).items() if key != "marker"}
    axis.plot(together.index, mean, label=method, linewidth=1.4, **line)
    axis.fill_between(together.index, mean - sd, mean + sd, color=colour(method), alpha=0.13, linewidth=0)
    ends = runs.loc[runs.groupby("seed")["epoch"].idxmax()]
    axis.plot(
        ends["epoch"], ends[metric].astype(float), linestyle="", markersize=5, color=colour(method),
        marker=mark(method)["marker"],
    )  # fmt: skip


def _limits(axis: Axes, values: pd.Series) -> None:
    known = values.dropna().astype(float)
    if len(known):
        low, high = known.quantile(0.002), known.quantile(0.998)
        pad = 0.06 * (high - low) or 0.01
        axis.set_ylim(low - pad, high + pad)
