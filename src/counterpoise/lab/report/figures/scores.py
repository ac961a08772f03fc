"""Figures of the synthetic studies: scores by method and condition."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...studies import STUDIES, Condition, Study
from ..intervals import seed_interval
from ..tables import method_order
from .spec import (
    TEXT_COLOUR,
    Axis,
    Bars,
    FigureSpec,
    Line,
    Mark,
    MarkStyle,
    Panel,
    Points,
    ReferenceLine,
    TextLabel,
    band_edges,
)
from .style import indexed_style, method_style

SCORE_NAMES = {"macro": "macro score", "worst": "worst-task score"}
FAINT_STYLE = MarkStyle("#BBBBBB")
MAIN_TITLE = "as in the paper"  # of the part without a name, next to others
NO_SCORES = np.empty(0)

_Scores = dict[tuple[str, str], np.ndarray]
"""Method and condition → scores."""


def stress_curves(frames: Mapping[str, pd.DataFrame]) -> FigureSpec:
    """Draw macro and worst-task scores against the scale factor, under scale stress (left) and rescaling (right)."""
    panels = []
    for metric, name in SCORE_NAMES.items():
        for key in ("scale-stress", "rescaling"):
            study, frame = STUDIES[key], frames[key]
            title = f"{study.title} ({_seed_count(frame, study)})"
            panels.append(_curves(study, frame, metric, next(iter(study.conditions_by_part().values())), title, name))
    return FigureSpec(
        "Score against scale factor (± 1 sd over seeds)",
        "Macro and worst-task scores of each method as the scale factor grows from 1 to 1000, under scale stress and "
        "under pure rescaling, with bands of one standard deviation.",
        panels,
        columns=2,
        size=(7.2, 5.6),
        share_y=True,
    )


def curves(study: Study, frame: pd.DataFrame) -> FigureSpec | None:
    """Draw the scores of a study against the scale factor: a column per table, a row per score.

    Return None if no table with scale factors was run.
    """
    run = set(frame["condition"])
    started = {
        name: cs for name, cs in study.conditions_by_part().items() if any(condition.key in run for condition in cs)
    }
    parts = {name: cs for name, cs in started.items() if "scale" in dict(cs[0].options)}
    if not parts:
        return None
    metrics = [metric for metric in study.metrics if metric in SCORE_NAMES]
    panels = []
    for metric in metrics:
        for name, conditions in parts.items():
            here = frame[frame["condition"].isin([condition.key for condition in conditions])]
            title = f"{name or MAIN_TITLE} ({_seed_count(here, study)})" if len(parts) > 1 else name
            panels.append(_curves(study, frame, metric, conditions, title, SCORE_NAMES[metric]))
    return FigureSpec(
        f"{study.title} (± 1 sd over seeds)",
        f"{study.title}: scores of each method against the scale factor, with bands of one standard deviation.",
        panels,
        columns=len(parts),
        size=(max(1.0 + 2.9 * len(parts), 4.4), 1.1 + 2.5 * len(metrics)),
        share_y=True,
    )


def _curves(
    study: Study, frame: pd.DataFrame, metric: str, conditions: Sequence[Condition], title: str, name: str
) -> Panel:
    scales = [float(dict(condition.options)["scale"]) for condition in conditions]
    scores, marks = _by_cell(frame, metric), []
    for method in study.methods:
        means, sds = _summary(study, scores, method, [c.key for c in conditions])
        if np.isfinite(means).any():
            marks.append(Line(method, scales, means, method_style(method), *band_edges(means, sds), markers=True))
    ticks = [(scale, f"×{int(scale)}") for scale in scales]
    return Panel(marks, title, Axis("scale factor", log=True, ticks=ticks), Axis(name))


def degradation(frames: Mapping[str, pd.DataFrame]) -> FigureSpec:
    """Draw the relative loss of macro score from ×1 to ×1000, with 95 % intervals over seeds."""
    panels = []
    for name in ("scale-stress", "rescaling"):
        study, marks = STUDIES[name], list[Mark]()
        pairs = {method: _paired_scores(frames[name], method, "×1", "×1000") for method in study.methods}
        methods = [method for method in study.methods if len(pairs[method])]
        highest = lowest = 0.0
        for place, method in enumerate(methods):
            drop, low, high = _relative_drop(*pairs[method].T)
            highest, lowest = max(highest, high, drop), min(lowest, low, drop)
            marks.append(Bars(method, [place], [drop], method_style(method), 0.65, [low], [high], along="x"))
            marks.append(TextLabel(max(high, 0), place, f"{drop:.1f} %".replace("-", "−"), "left", x_offset=5))
        room = 0.28 * (highest - lowest) or 1.0
        panels.append(
            Panel(
                [*marks, ReferenceLine(0, "vertical")],
                f"{study.title} ({_seed_count(frames[name], study)})",
                Axis("loss of macro score, ×1 → ×1000 (%)", limits=(lowest - room / 4, highest + room)),
                Axis(ticks=list(enumerate(methods)), limits=(len(methods) - 0.4, -0.6), grid=False),
            )
        )
    return FigureSpec(
        "Relative loss of score from ×1 to ×1000 (95 % intervals over seeds)",
        "Relative loss of each method's macro score from ×1 to ×1000, under scale stress and under pure rescaling.",
        panels,
        columns=2,
        size=(7.2, 3.3),
    )


def regimes(study: Study, frame: pd.DataFrame) -> FigureSpec:
    """Draw macro and worst-task scores of every method in every regime, with a dot per seed."""
    run = set(frame["condition"])
    keys, methods = [c.key for c in study.conditions if c.key in run], list(study.methods)
    width = 0.8 / len(methods)
    panels = []
    for metric, name in SCORE_NAMES.items():
        scores, marks = _by_cell(frame, metric), list[Mark]()
        for i, method in enumerate(methods):
            means, sds = _summary(study, scores, method, keys)
            places = np.arange(float(len(keys))) + (i - (len(methods) - 1) / 2) * width
            marks.append(Bars(method, places, means, method_style(method), width * 0.9, *band_edges(means, sds)))
            dots = [scores.get((method, key), NO_SCORES) for key in keys]
            x = np.repeat(places, [len(d) for d in dots])
            marks.append(Points("", x, np.concatenate(dots), MarkStyle(TEXT_COLOUR, "."), 2.5, faint=True))
        panels.append(Panel(marks, "", Axis(ticks=list(enumerate(keys)), grid=False), Axis(name)))
    return FigureSpec(
        f"{study.title} ({_seed_count(frame, study)}, ± 1 sd)",
        f"{study.title}: macro and worst-task score of each method in each regime, with a dot for each seed.",
        panels,
        size=(7.2, 5.0),
    )


def ranking(study: Study, frame: pd.DataFrame) -> FigureSpec:
    """Draw the mean macro score of every method in each condition, best method at the top."""
    methods, keys = method_order(study, frame), [c.key for c in study.conditions]
    scores = _by_cell(frame, "macro")
    table = {method: _summary(study, scores, method, keys) for method in methods}
    places = np.arange(len(methods), dtype=float)
    marks: list[Mark] = [
        Line("", [np.nanmin(means), np.nanmax(means)], [place, place], FAINT_STYLE, width=1)
        for place, (means, _) in zip(places, table.values(), strict=True)
        if np.isfinite(means).any()  # otherwise all runs of the method diverged
    ]
    for i, key in enumerate(keys):
        means, sds = (np.array([pair[which][i] for pair in table.values()]) for which in (0, 1))
        marks.append(
            Points(key, means, places, indexed_style(i), 4.5, *band_edges(means, sds), along="x", hover_texts=methods)
        )
    return FigureSpec(
        f"{study.title} ({_seed_count(frame, study)}, ± 1 sd, best learning rate)",
        f"{study.title}: mean macro score of {len(methods)} methods in each condition, best method at the top.",
        [
            Panel(
                marks,
                "",
                Axis("macro score"),
                Axis(ticks=list(enumerate(methods)), limits=(len(methods) - 0.4, -0.6)),
            )
        ],
        size=(7.2, 1.4 + 0.19 * len(methods)),
    )


def _by_cell(frame: pd.DataFrame, metric: str) -> _Scores:
    """Return the scores of each method and condition, in the order of their seeds."""
    groups = frame.sort_values("seed").groupby(["method", "condition"], sort=False)[metric]
    return {cell: scores.to_numpy(dtype=np.float64) for cell, scores in groups}


def _paired_scores(frame: pd.DataFrame, method: str, first: str, second: str) -> np.ndarray:
    """Return the macro scores under two conditions at their common seeds, (seeds, 2)."""
    runs = frame[(frame["method"] == method) & frame["condition"].isin([first, second])]
    table = runs.pivot_table(index="seed", columns="condition", values="macro", aggfunc="first")
    return np.asarray(table.reindex(columns=[first, second]).dropna(), dtype=np.float64)


def _summary(study: Study, scores: _Scores, method: str, conditions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and standard deviations of a method's scores in each condition."""
    values = [scores.get((method, condition), NO_SCORES) for condition in conditions]
    means = np.array([v.mean() if len(v) else np.nan for v in values])
    return means, np.array([v.std(ddof=study.ddof) if len(v) > study.ddof else 0.0 for v in values])


def _relative_drop(start: np.ndarray, end: np.ndarray) -> tuple[float, float, float]:
    """Return the relative loss in percent and its interval over seeds."""

    def relative_drop(seeds: np.ndarray) -> np.ndarray:
        return np.asarray(100 * (1 - end[seeds].mean(-1) / start[seeds].mean(-1)))

    return float(relative_drop(np.arange(len(start)))), *seed_interval(relative_drop, len(start))


def _seed_count(frame: pd.DataFrame, study: Study) -> str:
    count = frame.loc[frame["method"].isin(list(study.methods)), "seed"].nunique()
    return f"{count} seed{'s' if count > 1 else ''}"
