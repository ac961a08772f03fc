"""Figures of QM9: Δm against the epoch, and the errors of the properties relative to single-task models."""

import math
from collections.abc import Sequence

import pandas as pd

from ...data.qm9 import SINGLE_TASK_MAE, TARGETS
from ...studies import Condition, Study
from ...studies.qm9_published import CHANGE
from .spec import Axis, FigureSpec, Line, Numbers, Panel, Points, ReferenceLine
from .training import condition_title, styles_of_run_methods, with_seeds

CHANGE_TICKS = (20, 50, 100, 200, 500, 1000, 2000, 5000)
RATIO_TICKS = (0.5, 1, 2, 5, 10, 20, 50)


def curves_and_errors(
    study: Study, condition: Condition, scores: pd.DataFrame, histories: pd.DataFrame
) -> FigureSpec | None:
    """Draw Δm of each method against the epoch, and its errors relative to single-task models, as means over seeds.

    Args:
        study: the study.
        condition: the condition that is drawn.
        scores: the scores of the runs of this condition.
        histories: their recorded epochs.
    """
    measured = scores[scores[CHANGE].notna()]
    if not len(measured):
        return None
    styles = styles_of_run_methods(study, measured)
    curves, ratios = list[Line](), list[Points]()
    for method, style in styles.items():
        changes = histories[histories["method"] == method].groupby("epoch")[CHANGE].mean().astype(float)
        positive = changes[changes > 0]
        curves.append(Line(method, positive.index.to_numpy(float), positive.to_numpy(), style))
        errors = measured.loc[measured["method"] == method, [f"mae_{target}" for target in TARGETS]].mean()
        ratios.append(Points(method, errors.to_numpy(float) / SINGLE_TASK_MAE, range(len(TARGETS)), style, 4.5))
    return FigureSpec(
        with_seeds(condition_title(study, condition), measured).replace(", ± 1 sd", ""),
        f"{study.title}: Δm of {len(styles)} methods by epoch, and the errors of {len(TARGETS)} properties relative to "
        "published single-task models.",
        [
            Panel(
                curves,
                "Δm of the validation molecules (%) ↓",
                Axis("epoch"),
                _log_axis([m.y for m in curves], CHANGE_TICKS),
            ),
            Panel(
                [*ratios, ReferenceLine(1.0, "vertical", emphasised=True)],
                "error / error of a single-task model ↓",
                _log_axis([m.x for m in ratios], RATIO_TICKS),
                Axis(ticks=list(enumerate(TARGETS)), limits=(len(TARGETS) - 0.4, -0.6)),
            ),
        ],
        columns=2,
        size=(7.2, 4.2),
    )


def _log_axis(values: Sequence[Numbers], ticks: Sequence[float]) -> Axis:
    """Return a logarithmic axis for these values, with numbers at the ticks in its range."""
    known = [value for numbers in values for value in numbers if math.isfinite(value)]
    low, high = min(known, default=1.0) / 1.15, max(known, default=1.0) * 1.15
    return Axis(log=True, ticks=[(tick, f"{tick:g}") for tick in ticks if low < tick < high], limits=(low, high))
