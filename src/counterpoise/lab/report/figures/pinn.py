"""Figures of physics-informed networks: errors, error against steps, solution and error fields."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...data.pde import PDE
from ...studies import Study
from ..tables import METRIC_NAMES
from .dynamics import NamedHistories, recorded_tasks
from .spec import Axis, Field, FigureSpec, Line, Mark, MarkStyle, Panel, Points
from .style import indexed_style
from .training import with_seeds

Fields = Mapping[tuple[str, str], NDArray[np.float64]]
"""Solutions on a grid, by method and condition. The first index is the first coordinate."""

ERROR = "rel_l2"
PAPER_LABEL = "published"
MAX_TASKS = 4  # panels of weights
MAX_CURVES = 8
ALWAYS_SHOWN = ("Sum", "BPGS", "Gradient normalisation", "BPGS (gradient)", "LRA", "DCGD", "DCGD + LRA")
"""Methods whose curves are drawn if they were run, after the method with the lowest error."""
FIELDS = 4
"""How many of these methods have their solutions drawn."""


def shown_styles(study: Study, frame: pd.DataFrame) -> dict[str, MarkStyle]:
    """Return the styles of the methods whose curves are drawn: the best one, and those of the documentation."""
    means = _geometric_means(study, frame)
    names = [name for name in dict.fromkeys([*means.index[:1], *ALWAYS_SHOWN, *means.index]) if name in means.index]
    return {name: indexed_style(i) for i, name in enumerate(names[:MAX_CURVES])}


def errors(study: Study, frame: pd.DataFrame) -> FigureSpec | None:
    """Draw the error of every method under the first condition, with a dot per seed and the published means."""
    key = study.conditions[0].key
    here = frame[(frame["condition"] == key) & frame["seed"].isin(study.seeds) & frame[ERROR].notna()]
    means = _geometric_means(study, here)
    if not len(means):
        return None
    marks: list[Mark] = []
    for place, method in enumerate(means.index):
        values = here.loc[here["method"] == method, ERROR].to_numpy(dtype=float)
        marks.append(Points("", values, np.full(len(values), place), indexed_style(0), 3.0, faint=True))
    marks.append(Points("geometric mean", means.to_numpy(), range(len(means)), indexed_style(0), 6.0))
    published = study.paper.get(ERROR, {})
    known = {place: published[m][key][0] for place, m in enumerate(means.index) if key in published.get(m, {})}
    if known:
        marks.append(Points(PAPER_LABEL, list(known.values()), list(known), indexed_style(4), 6.0))
    return FigureSpec(
        with_seeds(study.title, here).replace(", ± 1 sd", ""),
        f"{study.title}: {METRIC_NAMES[ERROR]} of {len(means)} methods, lowest at the top.",
        [
            Panel(
                marks,
                "",
                Axis("relative L2 error", log=True),
                Axis(ticks=list(enumerate(map(str, means.index))), limits=(len(means) - 0.4, -0.6)),
            )
        ],
        size=(7.2, 1.4 + 0.19 * len(means)),
    )


def curves(title: str, histories: NamedHistories, styles: Mapping[str, MarkStyle]) -> FigureSpec:
    """Draw the error against the steps: geometric mean over seeds, with a band of one standard deviation of the log."""
    marks: list[Mark] = []
    for name, history in histories:
        table = history.set_index(["epoch", "seed"])[ERROR].astype(float).unstack().dropna()
        logs = np.log(table.to_numpy().clip(1e-12))
        if not len(table):
            continue
        middle, spread = logs.mean(1), logs.std(1, ddof=1) if logs.shape[1] > 1 else np.zeros(len(logs))
        edges = (np.exp(middle - spread), np.exp(middle + spread)) if logs.shape[1] > 1 else (None, None)
        marks.append(Line(name, table.index.to_numpy(float), np.exp(middle), styles[name], *edges))
    runs = pd.concat([history for _, history in histories])
    return FigureSpec(
        with_seeds(title, runs).replace("± 1 sd", "geometric mean"),
        f"{title}: relative L2 error at the lowest training loss so far, against the steps.",
        [Panel(marks, "", Axis("epoch of 1,000 steps"), Axis("relative L2 error", log=True))],
        size=(7.2, 4.2),
    )


def weights(title: str, histories: NamedHistories, styles: Mapping[str, MarkStyle]) -> FigureSpec | None:
    """Draw the weight of each task relative to that of the first, the residual; None if no method has weights."""
    known = [(name, history) for name, history in histories if recorded_tasks(history)]
    if not known:
        return None
    first, *others = recorded_tasks(known[0][1])
    panels = []
    for task in others[:MAX_TASKS]:
        marks: list[Mark] = []
        for name, history in known:
            ratio = history[f"weight:{task}"].astype(float) / history[f"weight:{first}"].astype(float)
            logs = history.assign(log=np.log(ratio.where(ratio > 0))).groupby("epoch")["log"].mean().dropna()
            if len(logs):
                marks.append(Line(name, logs.index.to_numpy(float), np.exp(logs.to_numpy()), styles[name]))
        panels.append(Panel(marks, f"{task} / {first}", Axis("epoch of 1,000 steps"), Axis(log=True)))
    columns = min(len(panels), 2)
    return FigureSpec(
        f"{title}: weights relative to the residual's",
        f"{title}: the weight of each loss divided by that of the residual, geometric mean over seeds.",
        panels,
        columns=columns,
        size=(7.2, 1.2 + 2.4 * (-(-len(panels) // columns))),
    )


def fields(title: str, equation: PDE, found: Mapping[str, NDArray[np.float64]]) -> FigureSpec | None:
    """Draw the exact solution, the solutions of some methods, and their errors; None without any solution."""
    if not found:
        return None
    names = list(found)[:FIELDS]
    exact = {points: _exact(equation, points) for points in {len(found[name]) for name in names}}
    finest = exact[max(exact)]
    largest = float(np.abs(finest).max())
    solutions = [_panel("exact solution", equation, finest, largest)]
    solutions += [_panel(name, equation, found[name], largest) for name in names]
    differences = [Panel((), hide_axes=True)]
    for name in names:
        error = found[name] - exact[len(found[name])]
        limit = float(np.abs(error).max()) or 1.0
        differences.append(_panel(f"error, at most {limit:.1g}", equation, error, limit))
    return FigureSpec(
        f"{title}: solutions and errors",
        f"{title}: the exact solution and those of {len(names)} networks, and their errors, each in its own scale.",
        [*solutions, *differences],
        columns=len(solutions),
        size=(2.2 * len(solutions), 4.2),
    )


def _exact(equation: PDE, points: int) -> NDArray[np.float64]:
    """Return the exact solution on a square grid."""
    values: NDArray[np.float64] = equation.exact(equation.grid(points)).reshape(points, points).numpy()
    return values


def _panel(name: str, equation: PDE, values: NDArray[np.float64], limit: float) -> Panel:
    (x0, y0), (x1, y1) = equation.lower, equation.upper
    x, y = (
        Axis(ticks=[(end, f"{end:g}".replace("-", "−")) for end in ends], grid=False) for ends in ((x0, x1), (y0, y1))
    )
    return Panel([Field(values.T, (x0, x1), (y0, y1), limit)], name, x, y)


def _geometric_means(study: Study, frame: pd.DataFrame) -> "pd.Series[float]":
    """Return the geometric mean of the errors of each method at the shown seeds, the lowest first."""
    known = frame[frame["seed"].isin(study.seeds) & frame[ERROR].notna()]
    logs = known.assign(log=np.log(known[ERROR].astype(float).clip(1e-12))).groupby("method")["log"].mean()
    return np.exp(logs).sort_values()
