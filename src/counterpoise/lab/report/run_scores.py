"""Scores and histories of finished runs as data frames."""

from collections.abc import Iterable
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..engine import Run
from ..engine.pinn import decode_field
from ..engine.trainers import is_function
from ..metrics.dense import HIGHER_IS_BETTER, delta_m, delta_m_percent
from ..studies import Cell, Study

COLUMNS = ["method", "condition", "seed", "lr", "macro", "worst", "epochs", "reach", "peak"]


class Results(Protocol):
    """Where results are looked up by run: a store, or runs collected from several places."""

    def result(self, run: Run) -> dict[str, Any] | None: ...
    def history(self, run: Run) -> list[dict[str, Any]]: ...


FinishedCells = list[tuple[Cell, dict[str, Any]]]
"""Cells of a study's grid with their results."""


class Selection(TypedDict, total=False):
    """Which runs of a study's grid to use."""

    seeds: Iterable[int] | None
    epochs: int | None
    device: str
    cells: FinishedCells  # what `finished_cells` returned for these seeds, epochs and device, to look them up only once


def collect_scores(study: Study, results: Results, **selection: Unpack[Selection]) -> pd.DataFrame:
    """Return one row per finished run: method, condition, seed, scores, metrics, and the score of each task.

    `reach` is the largest |z|/τ of BPGS at the end of training, `peak` the largest after any epoch; 1 is the bound.
    """
    rows = []
    for cell, result in finished_cells(study, results, **selection):
        place = {"method": cell.method, "condition": cell.condition.key, "seed": cell.run.seed}
        # Without a given rate, a function chooses its own.
        rate = cell.run.recipe.network_lr if is_function(cell.run) else cell.run.network_lr
        scores = {"lr": rate, "macro": result.get("macro"), "worst": result.get("worst")}
        position = (z for z in result["chart"].get("z_over_tau", []) if z is not None)
        scores["reach"] = max(map(abs, position), default=float("nan"))
        scores |= {"peak": result.get("peak"), "epochs": result.get("epochs")} | result.get("metrics", {})
        scores = {name: float("nan") if value is None else value for name, value in scores.items()}  # it diverged
        rows.append(place | scores | result.get("scores", {}) | place)  # a task may be called "seed"
    columns = None if rows else list(dict.fromkeys([*COLUMNS, *study.metrics]))
    frame = _merge_single_tasks(study, pd.DataFrame(rows, columns=columns))
    if "delta_m" in study.metrics:
        frame = _with_deltas(frame)
    for metric in (*study.metrics, *study.further_metrics):
        if metric not in frame:  # no run measured it
            frame[metric] = float("nan")
    return frame


def _merge_single_tasks(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Merge the runs that train one task each into one row: mean and worst score, if none is missing."""
    alone = frame["method"] == study.single_task_method
    if not study.single_task_method or not alone.any():
        return frame
    tasks = {condition.key: condition.targets for condition in study.conditions}
    groups = frame[alone].groupby(["method", "condition", "seed"])
    rows = groups.agg(
        lr=("lr", "first"), macro=("macro", "mean"), worst=("worst", "min"),
        count=("macro", "size"), scored=("macro", "count"),
    ).reset_index()  # fmt: skip
    rows.loc[rows["scored"] < rows["count"], ["macro", "worst"]] = float("nan")  # a task diverged
    complete = rows["count"] == rows["condition"].map(tasks)
    return pd.concat([frame[~alone], rows[complete].drop(columns=["count", "scored"])], ignore_index=True)


def collect_histories(study: Study, results: Results, **selection: Unpack[Selection]) -> pd.DataFrame:
    """Return one row per recorded epoch of each finished run.

    "watched" is the sum of losses that early stopping uses; "weight:task" is the weight of a task; "z:task" is z/τ and
    "theta:task" θ at the end of the epoch. Epoch 0 is the first step, where that was recorded.
    """
    rows = []
    for cell, result in finished_cells(study, results, **selection):
        tasks = list(result["weights"])
        place = {"method": cell.method, "condition": cell.condition.key, "seed": cell.run.seed}
        for row in results.history(cell.run):
            chart = row["chart"]
            if "z_over_tau_first" in chart and row["epoch"] == 1:
                rows.append(place | {"epoch": 0} | _by_task("z", tasks, chart["z_over_tau_first"]))
            numbers = {name: value for name, value in row.items() if isinstance(value, float | int)}
            watched = {"watched": None if row["monitor"] is None else -row["monitor"]}
            each = _by_task("weight", tasks, row["weight"])
            if chart:
                each |= _by_task("z", tasks, chart["z_over_tau"]) | _by_task("theta", tasks, chart["theta"])
            rows.append(place | numbers | watched | row.get("metrics", {}) | each | place | {"epoch": row["epoch"]})
    return pd.DataFrame(rows, columns=None if rows else ["method", "condition", "seed", "epoch"])


def collect_fields(
    study: Study, results: Results, **selection: Unpack[Selection]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return a saved solution of each method and condition, at the first of the shown seeds that has one."""
    fields: dict[tuple[str, str], NDArray[np.float64]] = {}
    for cell, result in finished_cells(study, results, **selection):
        if cell.run.seed in study.seeds and isinstance(result.get("field"), str):
            fields.setdefault((cell.method, cell.condition.key), decode_field(result["field"]))
    return fields


def _by_task(quantity: str, tasks: list[str], values: list[float]) -> dict[str, float]:
    return {f"{quantity}:{task}": value for task, value in zip(tasks, values, strict=True)}


def finished_cells(study: Study, results: Results, **selection: Unpack[Selection]) -> FinishedCells:
    """Return the cells that have a result, with it.

    An opt-in condition borrows runs of the default ones, but only at seeds at which it has runs of its own. Otherwise
    its table would compare means over different seeds. Without runs of its own it is empty.
    """
    if "cells" in selection:
        return selection["cells"]
    seeds, epochs, device = selection.get("seeds"), selection.get("epochs"), selection.get("device", "cpu")
    looked_up: dict[Run, dict[str, Any] | None] = {}
    found: FinishedCells = []
    for cell in study.grid(seeds=seeds or study.all_seeds, epochs=epochs, device=device):
        if cell.run not in looked_up:
            looked_up[cell.run] = results.result(cell.run)
        result = looked_up[cell.run]
        if result is not None:
            found.append((cell, result))
    default = {cell.run for cell, _ in found if not cell.condition.opt_in}
    own = {
        (cell.condition.key, cell.run.seed) for cell, _ in found if cell.condition.opt_in and cell.run not in default
    }
    return [
        (cell, result)
        for cell, result in found
        if not cell.condition.opt_in or (cell.condition.key, cell.run.seed) in own
    ]


def select_seeds(frame: pd.DataFrame, seeds: Iterable[int]) -> pd.DataFrame:
    """Return the runs at these seeds, with Δ_M recomputed against Static at the same seeds."""
    selected = frame[frame["seed"].isin(list(seeds))]
    return _with_deltas(selected) if "delta_m" in selected and set(HIGHER_IS_BETTER) <= set(selected) else selected


def _with_deltas(frame: pd.DataFrame) -> pd.DataFrame:
    """Add Δ_M of each run, in both conventions, against the mean of Static over the seeds of its table.

    A run at a seed without Static gets NaN, because means over different seeds are not comparable. Both conventions are
    linear in the metrics, so their means over seeds equal the values computed from mean metrics.
    """
    static = frame[frame["method"] == "Static"].drop_duplicates("seed").set_index("seed")
    static = static.reindex(columns=list(HIGHER_IS_BETTER)).dropna()  # drops runs that diverged
    baselines = {
        key: static[static.index.isin(here["seed"])].mean().to_dict() for key, here in frame.groupby("condition")
    }
    none = dict.fromkeys(HIGHER_IS_BETTER, float("nan"))
    rows = [
        (row, baselines[row["condition"]] if row["seed"] in static.index else none) for row in frame.to_dict("records")
    ]
    return frame.assign(
        delta_m=[delta_m(row, baseline) for row, baseline in rows],
        delta_m_percent=[delta_m_percent(row, baseline) for row, baseline in rows],
    )


def keep_best_rates(frame: pd.DataFrame, *, by_condition: bool = False) -> pd.DataFrame:
    """Keep, of several learning rates per method, the one with the best mean macro score.

    Args:
        frame: the scores.
        by_condition: whether each condition has its own rate. By default, a method has one rate for all conditions.
    """
    keys = ["method", "condition"] if by_condition else ["method"]
    best = rank_by_score(frame, [*keys, "lr"]).reset_index().drop_duplicates(keys)[[*keys, "lr"]]
    return frame.merge(best, on=[*keys, "lr"])


def without_rate_seeds(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out the seeds at which learning rates were chosen, unless there are no others."""
    others = frame[~frame["seed"].isin(study.rate_seeds)]
    return others if len(others) else frame


def rank_by_score(frame: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Return the number and the mean of the macro scores of each group, best group first.

    A group with fewer scores ranks behind one with more: the runs that did not diverge are not a fair sample.
    """
    return frame.groupby(by)["macro"].agg(["count", "mean"]).sort_values(["count", "mean"], ascending=False)
