"""Results from disk as one table: a row for each run."""

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict, Unpack

import pandas as pd

from ..engine import Store
from ..metrics.dense import TASKS, UP, delta_m, delta_m_percent
from ..studies import Study

COLUMNS = ["method", "condition", "seed", "lr", "macro", "worst", "epochs", "reach", "peak"]


def collect(
    study: Study, store: Store, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
) -> pd.DataFrame:
    """The finished runs of a study's grid: where each stands, its scores and metrics, and each task's score.

    `reach` is the largest |z|/τ that BPGS ends with, `peak` the largest after any epoch: 1 is the edge of the chart.
    """
    rows = []
    cells = list(study.grid(seeds=seeds or study.every_seed, epochs=epochs, device=device))
    results = {run: store.result(run) for run in dict.fromkeys(cell.run for cell in cells)}
    usual = {cell.run for cell in cells if not cell.condition.asked}
    # A table that wants to be asked for is empty as long as all it has are runs of the usual ones.
    begun = {c.condition.key for c in cells if results[c.run] is not None and (c.run in usual) != c.condition.asked}
    for cell in cells:
        result = results[cell.run]
        if result is not None and cell.condition.key in begun:
            place = {"method": cell.method, "condition": cell.condition.key, "seed": cell.run.seed}
            found = {"lr": cell.run.network_lr, "macro": result.get("macro"), "worst": result.get("worst")}
            position = result["chart"].get("z_over_tau", [])
            found["reach"] = max(map(abs, position), default=float("nan"))
            found |= {"peak": result.get("peak"), "epochs": result.get("epochs")} | result.get("metrics", {})
            rows.append(place | found | result.get("scores", {}))
    columns = None if rows else list(dict.fromkeys([*COLUMNS, *study.metrics]))
    frame = _joined(study, pd.DataFrame(rows, columns=columns))
    if "delta_m" in study.metrics:
        frame = _with_deltas(frame)
    for metric in (*study.metrics, *study.further):
        if metric not in frame:  # no run so far has it
            frame[metric] = float("nan")
    return frame


def _joined(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Tasks that were trained alone as one row, the mean and the worst of their scores, where none is missing."""
    alone = frame["method"] == study.single
    if not study.single or not alone.any():
        return frame
    tasks = {condition.key: condition.targets for condition in study.conditions}
    groups = frame[alone].groupby(["method", "condition", "seed"])
    rows = groups.agg(lr=("lr", "first"), macro=("macro", "mean"), worst=("worst", "min"), count=("macro", "size"))
    rows = rows.reset_index()
    whole = rows["count"] == rows["condition"].map(tasks)
    return pd.concat([frame[~alone], rows[whole].drop(columns="count")], ignore_index=True)


class Which(TypedDict, total=False):
    """Which runs of a study's grid."""

    seeds: Iterable[int] | None
    epochs: int | None
    device: str


def curves(study: Study, condition: str, store: Store, **which: Unpack[Which]) -> pd.DataFrame:
    """What the finished runs of one condition recorded: method, seed, epoch, the study's metrics, the watched loss."""
    rows = []
    for place, row in _epochs(study, condition, store, **which):
        loss = {"loss": None if row["monitor"] is None else -row["monitor"]}
        rows.append(place | {metric: row[metric] for metric in study.metrics} | loss)
    return pd.DataFrame(rows)


def dense_curves(study: Study, condition: str, store: Store, **which: Unpack[Which]) -> pd.DataFrame:
    """The same for dense prediction: method, seed, epoch, all metrics, and each task's weight."""
    rows = []
    for place, row in _epochs(study, condition, store, **which):
        weights = {f"weight_{task}": weight for task, weight in zip(TASKS, row["weight"], strict=True)}
        rows.append(place | row["metrics"] | weights)
    return pd.DataFrame(rows)


def _epochs(
    study: Study,
    condition: str,
    store: Store,
    *,
    seeds: Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every recorded epoch of the finished runs of a condition, and where it stands."""
    for cell in study.grid(seeds=seeds or study.every_seed, epochs=epochs, device=device):
        if cell.condition.key == condition and store.result(cell.run) is not None:
            for row in store.history(cell.run):
                yield {"method": cell.method, "seed": cell.run.seed, "epoch": row["epoch"]}, row


def _with_deltas(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds Δ_M of each run against the mean over seeds of Static, in both conventions.

    Both are linear in the metrics, so their means over seeds are those that follow from mean metrics.
    """
    static = frame[frame["method"] == "Static"]
    if not len(static):
        return frame.assign(delta_m=float("nan"), delta_m_percent=float("nan"))
    baseline = static.drop_duplicates("seed")[list(UP)].mean().to_dict()
    rows = frame[list(UP)].to_dict("records")
    return frame.assign(
        delta_m=[delta_m(row, baseline) for row in rows],
        delta_m_percent=[delta_m_percent(row, baseline) for row in rows],
    )


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Where several learning rates were tried, each method keeps the one with the best mean macro score."""
    means = frame.groupby(["method", "lr"])["macro"].mean()
    best = {method: means[method].idxmax() for method in frame["method"].unique()}
    return frame[frame["lr"] == frame["method"].map(best)].reset_index(drop=True)
