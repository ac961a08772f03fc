"""Results from disk as one table: a row for each run."""

from collections.abc import Iterable

import pandas as pd

from ..engine import Store
from ..studies import Study

COLUMNS = ["method", "condition", "seed", "lr", "macro", "worst", "epochs", "reach", "peak"]


def collect(
    study: Study, store: Store, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
) -> pd.DataFrame:
    """The finished runs of a study's grid: where each stands, its scores and metrics, and each task's score.

    `reach` is the largest |z|/τ that BPGS ends with, `peak` the largest after any epoch: 1 is the edge of the chart.
    """
    rows = []
    for cell in study.grid(seeds=seeds or study.every_seed, epochs=epochs, device=device):
        result = store.result(cell.run)
        if result is not None:
            place = {"method": cell.method, "condition": cell.condition.key, "seed": cell.run.seed}
            found = {"lr": cell.run.network_lr, "macro": result["macro"], "worst": result["worst"]}
            position = result["chart"].get("z_over_tau", [])
            found["reach"] = max(map(abs, position), default=float("nan"))
            found |= {"peak": result.get("peak"), "epochs": result.get("epochs")} | result.get("metrics", {})
            rows.append(place | found | result["scores"])
    columns = None if rows else list(dict.fromkeys([*COLUMNS, *study.metrics]))
    return _joined(study, pd.DataFrame(rows, columns=columns))


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


def curves(
    study: Study,
    condition: str,
    store: Store,
    *,
    seeds: Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
) -> pd.DataFrame:
    """What the finished runs of one condition recorded: method, seed, epoch, the study's metrics, the watched loss."""
    rows = []
    for cell in study.grid(seeds=seeds or study.every_seed, epochs=epochs, device=device):
        if cell.condition.key == condition and store.result(cell.run) is not None:
            for row in store.history(cell.run):
                place = {"method": cell.method, "seed": cell.run.seed, "epoch": row["epoch"]}
                loss = {"loss": None if row["monitor"] is None else -row["monitor"]}
                rows.append(place | {metric: row[metric] for metric in study.metrics} | loss)
    return pd.DataFrame(rows)


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Where several learning rates were tried, each method keeps the one with the best mean macro score."""
    means = frame.groupby(["method", "lr"])["macro"].mean()
    best = {method: means[method].idxmax() for method in frame["method"].unique()}
    return frame[frame["lr"] == frame["method"].map(best)].reset_index(drop=True)
