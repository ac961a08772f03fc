"""Figures of the training dynamics: task weights, and the chart variables of BPGS."""

from collections.abc import Mapping, Sequence

import pandas as pd

from .spec import Axis, FigureSpec, MarkStyle, Panel, ReferenceLine
from .style import indexed_style
from .training import band

NamedHistories = Sequence[tuple[str, pd.DataFrame]]
"""Recorded epochs, each with the name to show."""
MAX_TASK_PANELS = 4


def recorded_tasks(history: pd.DataFrame, quantity: str = "weight") -> list[str]:
    """Return the tasks of which a quantity was recorded."""
    columns = [str(name) for name in history.columns if str(name).startswith(f"{quantity}:")]
    return [name.partition(":")[2] for name in columns if history[name].notna().any()]


def chart(title: str, histories: NamedHistories) -> FigureSpec | None:
    """Draw z/τ and θ of each task against the epoch; None if no method has a chart."""
    panels = []
    for name, history in histories:
        for quantity, axis in (("z", Axis("z/τ", limits=(-1.22, 1.22))), ("theta", Axis("θ"))):
            each = recorded_tasks(history, quantity)
            lines = [
                m for i, task in enumerate(each) for m in band(task, history, f"{quantity}:{task}", indexed_style(i))
            ]
            if not lines:
                continue
            bounds = [
                ReferenceLine(1, "horizontal", "bound", emphasised=True),
                ReferenceLine(-1, "horizontal", emphasised=True),
            ]
            marks = [*lines, *bounds] if quantity == "z" else lines
            panels.append(Panel(marks, f"{name}: {axis.label}", Axis("epoch"), axis))
    if not panels:
        return None
    return FigureSpec(
        f"{title}: chart of BPGS",
        f"{title}: z/τ of each task, which is bounded by −1 and 1, and θ against the epoch.",
        panels,
        columns=2,
        size=(7.2, 0.8 + 2.3 * (-(-len(panels) // 2))),
    )


def weights(title: str, histories: NamedHistories, styles: Mapping[str, MarkStyle]) -> FigureSpec | None:
    """Draw the share of each task in the weights, averaged over the steps of each epoch; None if none was recorded.

    There is a panel per task if there are few tasks, otherwise a panel per method.
    """
    shares = [(name, share) for name, history in histories if (share := _shares(history)) is not None]
    if not shares:
        return None
    each = recorded_tasks(shares[0][1])
    if len(each) <= MAX_TASK_PANELS:
        panels = [
            Panel(
                [m for name, history in shares for m in band(name, history, f"weight:{task}", styles[name])],
                task,
                Axis("epoch"),
                Axis("share of the weights", limits=(0, 1)),
            )
            for task in each
        ]
    else:
        panels = [
            Panel(
                [m for i, task in enumerate(each) for m in band(task, history, f"weight:{task}", indexed_style(i))],
                name,
                Axis("epoch"),
                Axis("share of the weights"),
            )
            for name, history in shares
        ]
    columns = min(len(panels), 3)
    return FigureSpec(
        f"{title}: task weights",
        f"{title}: the share of each task in the weights against the epoch.",
        panels,
        columns=columns,
        size=(7.2, 1.0 + 2.2 * (-(-len(panels) // columns))),
        share_y=True,
    )


def _shares(history: pd.DataFrame) -> pd.DataFrame | None:
    columns = [f"weight:{task}" for task in recorded_tasks(history)]
    if not columns:
        return None
    numbers = history[columns].astype(float)
    shares = history.copy()
    shares[columns] = numbers.div(numbers.sum(axis=1), axis=0)
    return shares
