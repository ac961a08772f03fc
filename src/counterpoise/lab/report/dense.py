"""The figures of dense prediction: validation curves, task weights, scores side by side."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..metrics.dense import TASKS, UP
from ..studies import Condition, Study
from .style import RC, colour, mark
from .tables import NAMES

CURVES = ("miou", "abs_rel", "angle", "total_loss")
TASK_NAMES = {"seg": "segmentation", "depth": "depth", "normals": "surface normals"}


def title(study: Study, condition: Condition, found: pd.DataFrame) -> str:
    seeds = sorted(found["seed"].unique())
    which = f"{len(seeds)} seeds, ± 1 sd" if len(seeds) > 1 else f"seed {seeds[0]}"
    part = f", {condition.part or condition.key}" if len(study.conditions) > 1 else ""
    return f"{study.title}{part} ({which})"


def methods(study: Study, found: pd.DataFrame) -> list[str]:
    there = set(found["method"])
    return [method for method in study.methods if method in there]


def curves(study: Study, condition: Condition, found: pd.DataFrame) -> Figure:
    """Held-out metrics from epoch to epoch."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True).flatten()
        for axis, metric in zip(axes, CURVES, strict=True):
            for method in methods(study, found):
                _band(axis, method, found, metric)
            axis.set_title(NAMES[metric])
            _limits(axis, found, metric)
        _finish(figure, list(axes), title(study, condition, found))
    return figure


def weights(study: Study, condition: Condition, found: pd.DataFrame) -> Figure:
    """What multiplied each task, as its share of the three: a mean over the steps of each epoch."""
    columns = [f"weight_{task}" for task in TASKS]
    shares = found.copy()
    shares[columns] = found[columns].astype(float).div(found[columns].astype(float).sum(axis=1), axis=0)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for axis, task in zip(axes, TASKS, strict=True):
            for method in methods(study, shares):
                _band(axis, method, shares, f"weight_{task}")
            axis.set_title(TASK_NAMES[task])
        axes[0].set_ylabel("share of the weights")
        axes[0].set_ylim(0, 1)
        _finish(figure, list(axes), title(study, condition, found))
    return figure


def scores(study: Study, condition: Condition, frame: pd.DataFrame) -> Figure:
    """A panel for each metric of the table: each method's mean, a dot for each seed, the paper's mean as a line."""
    metrics = [m for m in study.metrics if frame[m].notna().any()]
    order = methods(study, frame)
    with mpl.rc_context(RC):
        columns = -(-len(metrics) // 2)
        figure = Figure(figsize=(1.9 * columns + 1.2, 5.0), layout="constrained")
        axes = figure.subplots(2, columns, squeeze=False).flatten()
        for axis, metric in zip(axes, metrics, strict=False):
            for place, method in enumerate(order):
                values = frame.loc[frame["method"] == method, metric].to_numpy(dtype=float)
                shape = {key: value for key, value in mark(method).items() if key != "linestyle"}
                axis.plot(place, values.mean(), linestyle="", markersize=8, label=method, **shape)
                axis.plot(np.full(len(values), place), values, ".", color="#222222", markersize=3, alpha=0.7)
                said = study.paper.get(metric, {}).get(method, {}).get(condition.key)
                if said:
                    axis.plot([place - 0.42, place + 0.42], [said[0]] * 2, color="#222222", linewidth=1.2)
            axis.set_title(NAMES[metric])
            axis.set_xticks([])
            axis.grid(axis="x", visible=False)
            axis.margins(x=0.12, y=0.12)
        for axis in axes[len(metrics) :]:
            axis.set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))
        theirs = "; lines: the paper's means" if study.paper else ""
        figure.suptitle(f"{title(study, condition, frame).replace(', ± 1 sd', '')}{theirs}", fontsize=10)
    return figure


def heatmap(study: Study, condition: Condition, frame: pd.DataFrame) -> Figure:
    """Mean metrics, coloured from the worst method (light) to the best (dark) of each column."""
    metrics = [m for m in study.metrics if frame[m].notna().any()]
    order = methods(study, frame)
    means = frame.groupby("method")[metrics].mean().loc[order]
    signs = np.array([1 if UP.get(m, m == "delta_m") else -1 for m in metrics])
    good = means.to_numpy() * signs
    low, high = np.nanmin(good, 0), np.nanmax(good, 0)
    shade = (good - low) / np.where(high > low, high - low, 1)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(0.95 * len(metrics) + 1.9, 0.42 * len(order) + 1.2), layout="constrained")
        axis = figure.subplots()
        axis.imshow(shade, cmap="Blues", aspect="auto", vmin=0, vmax=1.25)
        for i in range(len(order)):
            for j in range(len(metrics)):
                dark = shade[i, j] > 0.7
                axis.text(
                    j,
                    i,
                    f"{round(means.iloc[i, j], 3) + 0.0:.3f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
        axis.set_xticks(range(len(metrics)), [NAMES[m] for m in metrics])
        axis.set_yticks(range(len(order)), order)
        axis.grid(visible=False)
        axis.tick_params(length=0)
        axis.xaxis.tick_top()
        figure.suptitle(title(study, condition, frame).replace(", ± 1 sd", ""), fontsize=10)
    return figure


def _band(axis: Axes, method: str, found: pd.DataFrame, metric: str) -> None:
    runs = found[found["method"] == method]
    table = runs.pivot_table(index="epoch", columns="seed", values=metric, aggfunc="first").astype(float)
    mean, sd = table.mean(axis=1), table.std(axis=1, ddof=1).fillna(0.0)
    line = {key: value for key, value in mark(method).items() if key in ("color", "linestyle")}
    axis.plot(mean.index, mean, label=method, linewidth=1.4, **line)
    axis.fill_between(mean.index, mean - sd, mean + sd, color=colour(method), alpha=0.13, linewidth=0)


def _limits(axis: Axes, found: pd.DataFrame, metric: str) -> None:
    """The first epochs may lie far outside: they would flatten all that follows."""
    known = found[metric].dropna().astype(float)
    low, high = known.quantile(0.02), known.quantile(0.98)
    pad = 0.06 * (high - low) or 0.01
    axis.set_ylim(low - pad, high + pad)


def _finish(figure: Figure, axes: list[Axes], heading: str) -> None:
    for axis in axes[-2:] if len(axes) == 4 else axes:
        axis.set_xlabel("epoch")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))
    figure.suptitle(heading, fontsize=10)
