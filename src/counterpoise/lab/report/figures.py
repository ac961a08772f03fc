"""The figures of the synthetic studies. Each takes results that were read from disk and returns a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..studies import STUDIES, Condition, Study
from .style import RC, colour, mark
from .tables import ranked

METRICS = {"macro": "macro score", "worst": "worst-task score"}


def stress_curves(frames: Mapping[str, pd.DataFrame]) -> Figure:
    """Score against scale factor: scale stress on the left, pure rescaling on the right, macro above worst task."""
    names = ("scale-stress", "rescaling")
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, name in enumerate(names):
            study, frame = STUDIES[name], frames[name]
            for row, metric in enumerate(METRICS):
                _curves(axes[row, column], study, frame, metric, next(iter(study.parts().values())))
                axes[row, column].set_ylabel(METRICS[metric] if column == 0 else "")
            axes[0, column].set_title(f"{study.title} ({_seeds(frame, study)} seeds, ± 1 sd)")
            axes[1, column].set_xlabel("scale factor")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def curves(study: Study, frame: pd.DataFrame) -> Figure:
    """One study's scores against the scale factor: a column for each of its tables, a row for each score."""
    parts = {name: cs for name, cs in study.parts().items() if "scale" in dict(cs[0].options)}
    metrics = [metric for metric in study.metrics if metric in METRICS]
    with mpl.rc_context(RC):
        size = (1.0 + 2.9 * len(parts), 0.9 + 2.5 * len(metrics))
        figure = Figure(figsize=(max(size[0], 4.4), size[1]), layout="constrained")
        axes = figure.subplots(len(metrics), len(parts), sharex=True, sharey="row", squeeze=False)
        for column, (name, conditions) in enumerate(parts.items()):
            for row, metric in enumerate(metrics):
                _curves(axes[row, column], study, frame, metric, conditions)
                axes[row, 0].set_ylabel(METRICS[metric])
            axes[0, column].set_title(name or ("the paper's" if len(parts) > 1 else ""))
            axes[-1, column].set_xlabel("scale factor")
        figure.suptitle(f"{study.title} (± 1 sd over seeds)", fontsize=10)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(parts)))
    return figure


def _curves(axis: Axes, study: Study, frame: pd.DataFrame, metric: str, conditions: Sequence[Condition]) -> None:
    scales = [dict(condition.options)["scale"] for condition in conditions]
    for method in study.methods:
        means, sds = _summary(study, frame, method, [c.key for c in conditions], metric)
        axis.plot(scales, means, label=method, linewidth=1.6, markersize=5, **mark(method))
        axis.fill_between(scales, means - sds, means + sds, color=colour(method), alpha=0.13, linewidth=0)
    axis.set_xscale("log")
    axis.set_xticks(scales, [f"×{int(s)}" for s in scales])
    axis.minorticks_off()


def degradation(frames: Mapping[str, pd.DataFrame]) -> Figure:
    """The relative change of the macro score from ×1 to ×1000, with 95 % bootstrap intervals over seeds."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        for axis, name in zip(figure.subplots(1, 2), ("scale-stress", "rescaling"), strict=True):
            study = STUDIES[name]
            for place, method in enumerate(study.methods):
                start, end = (_by_seed(frames[name], method, c, "macro") for c in ("×1", "×1000"))
                drop, low, high = _relative_drop(start, end)
                axis.barh(place, drop, color=colour(method), height=0.65)
                axis.errorbar(
                    drop, place, xerr=[[drop - low], [high - drop]], color="#222222", capsize=2.5, linewidth=1
                )
                axis.annotate(
                    f"{drop:.1f} %".replace("-", "−"),
                    (max(high, 0), place),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                )
            axis.set_yticks(range(len(study.methods)), list(study.methods))
            axis.invert_yaxis()
            axis.axvline(0, color="#222222", linewidth=0.8)
            axis.margins(x=0.22)
            axis.grid(axis="y", visible=False)
            axis.set_title(f"{study.title} ({_seeds(frames[name], study)} seeds)")
            axis.set_xlabel("loss of macro score, ×1 → ×1000 (%)")
    return figure


def regimes(study: Study, frame: pd.DataFrame) -> Figure:
    """Macro and worst-task score of every method in every regime, one dot per seed."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        axes = figure.subplots(2, 1, sharex=True)
        keys, methods = [c.key for c in study.conditions], list(study.methods)
        width = 0.8 / len(methods)
        for axis, metric in zip(axes, METRICS, strict=True):
            for i, method in enumerate(methods):
                means, sds = _summary(study, frame, method, keys, metric)
                places = np.arange(len(keys)) + (i - (len(methods) - 1) / 2) * width
                axis.bar(places, means, width * 0.9, color=colour(method), label=method, alpha=0.85)
                axis.errorbar(places, means, sds, fmt="none", color="#222222", capsize=2, linewidth=0.9)
                for place, key in zip(places, keys, strict=True):
                    dots = _by_seed(frame, method, key, metric)
                    axis.plot(np.full(len(dots), place), dots, ".", color="#222222", markersize=2.5, alpha=0.5)
            axis.set_ylabel(METRICS[metric])
            axis.grid(axis="x", visible=False)
        axes[1].set_xticks(range(len(keys)), keys)
        figure.suptitle(f"{study.title} ({_seeds(frame, study)} seeds, ± 1 sd)", fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def ranking(study: Study, frame: pd.DataFrame) -> Figure:
    """Every method, the best above: a dot for its mean macro score in each condition."""
    methods, keys = ranked(study, frame), [c.key for c in study.conditions]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 1.2 + 0.19 * len(methods)), layout="constrained")
        axis = figure.subplots()
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(keys)))
        for place, method in enumerate(methods):
            means, sds = _summary(study, frame, method, keys, "macro")
            axis.plot([np.nanmin(means), np.nanmax(means)], [place, place], color="#BBBBBB", linewidth=1, zorder=1)
            for mean, sd, shade, shape in zip(means, sds, shades, "osD^", strict=True):
                axis.errorbar(mean, place, xerr=sd, fmt=shape, color=shade, markersize=4.5, linewidth=0.5)
        for key, shade, shape in zip(keys, shades, "osD^", strict=True):
            axis.plot([], [], shape, color=shade, markersize=4.5, label=key)
        axis.set_yticks(range(len(methods)), methods)
        axis.set_ylim(len(methods) - 0.4, -0.6)
        axis.set_xlabel("macro score")
        figure.suptitle(f"{study.title} ({_seeds(frame, study)} seeds, ± 1 sd, best learning rate)", fontsize=10)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(keys))
    return figure


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes a figure as PNG and PDF."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for file in written:
        dates = {"CreationDate": None} if file.suffix == ".pdf" else {}
        figure.savefig(file, dpi=200, metadata=dates)
    return written


def _by_seed(frame: pd.DataFrame, method: str, condition: str, metric: str) -> np.ndarray:
    rows = frame[(frame["method"] == method) & (frame["condition"] == condition)].sort_values("seed")
    return np.asarray(rows[metric], dtype=np.float64)


def _summary(
    study: Study, frame: pd.DataFrame, method: str, conditions: Sequence[str], metric: str
) -> tuple[np.ndarray, np.ndarray]:
    values = [_by_seed(frame, method, condition, metric) for condition in conditions]
    means = np.array([v.mean() if len(v) else np.nan for v in values])
    return means, np.array([v.std(ddof=study.ddof) if len(v) > study.ddof else 0.0 for v in values])


def _relative_drop(start: np.ndarray, end: np.ndarray) -> tuple[float, float, float]:
    """In percent, with its bootstrap interval over seeds."""
    chosen = np.random.default_rng(0).integers(len(start), size=(10_000, len(start)))
    drawn = 100 * (1 - end[chosen].mean(1) / start[chosen].mean(1))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(100 * (1 - end.mean() / start.mean())), float(low), float(high)


def _seeds(frame: pd.DataFrame, study: Study) -> int:
    return int(frame.loc[frame["method"].isin(list(study.methods)), "seed"].nunique())
