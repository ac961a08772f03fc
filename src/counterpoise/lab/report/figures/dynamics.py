"""What a method does on its way: the weights of the tasks, and where BPGS stands in its chart."""

from collections.abc import Mapping, Sequence

import pandas as pd

from .spec import Axis, Drawing, Look, Panel, Rule
from .style import nth
from .training import band

Shown = Sequence[tuple[str, pd.DataFrame]]
"""Recorded epochs with what they are called."""
FEW = 4  # tasks that may have a panel each


def tasks(found: pd.DataFrame, what: str = "weight") -> list[str]:
    """The tasks of which something was recorded."""
    columns = [str(name) for name in found.columns if str(name).startswith(f"{what}:")]
    return [name.partition(":")[2] for name in columns if found[name].notna().any()]


def chart(title: str, shown: Shown) -> Drawing | None:
    """z/τ, between the edges of the chart, and θ of each task; None where nothing has a chart."""
    panels = []
    for name, found in shown:
        for what, says, axis in (("z", "z/τ", Axis("z/τ", limits=(-1.22, 1.22))), ("theta", "θ", Axis("θ"))):
            each = tasks(found, what)
            lines = [m for i, task in enumerate(each) for m in band(task, found, f"{what}:{task}", nth(i))]
            if not lines:
                continue
            edges = [Rule(1, "x", "edge of the chart", strong=True), Rule(-1, "x", strong=True)] if what == "z" else []
            panels.append(Panel([*lines, *edges], f"{name}: {says}", Axis("epoch"), axis))
    if not panels:
        return None
    return Drawing(
        f"{title}: where BPGS stands in its chart",
        f"{title}: z/τ of each task, which stays between the edges −1 and 1 of the chart, and θ, from epoch to epoch.",
        panels,
        columns=2,
        size=(7.2, 0.8 + 2.3 * (-(-len(panels) // 2))),
    )


def weights(title: str, shown: Shown, looks: Mapping[str, Look]) -> Drawing | None:
    """What multiplied each task, as its share of all, a mean over the steps of each epoch.

    A panel for each task where there are few, otherwise one for each method.
    """
    shares = [(name, share) for name, found in shown if (share := _shares(found)) is not None]
    if not shares:
        return None
    each = tasks(shares[0][1])
    if len(each) <= FEW:
        panels = [
            Panel(
                [m for name, found in shares for m in band(name, found, f"weight:{task}", looks[name])],
                task,
                Axis("epoch"),
                Axis("share of the weights", limits=(0, 1)),
            )
            for task in each
        ]
    else:
        panels = [
            Panel(
                [m for i, task in enumerate(each) for m in band(task, found, f"weight:{task}", nth(i))],
                name,
                Axis("epoch"),
                Axis("share of the weights"),
            )
            for name, found in shares
        ]
    columns = min(len(panels), 3)
    return Drawing(
        f"{title}: task weights",
        f"{title}: the share of each task in the weights, from epoch to epoch.",
        panels,
        columns=columns,
        size=(7.2, 1.0 + 2.2 * (-(-len(panels) // columns))),
        shared=True,
    )


def _shares(found: pd.DataFrame) -> pd.DataFrame | None:
    columns = [f"weight:{task}" for task in tasks(found)]
    if not columns:
        return None
    numbers = found[columns].astype(float)
    shares = found.copy()
    shares[columns] = numbers.div(numbers.sum(axis=1), axis=0)
    return shares
