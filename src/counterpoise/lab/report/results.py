"""Results from disk as one table: a row for each run."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypedDict, Unpack

import pandas as pd

from ..engine import Run
from ..metrics.dense import UP, delta_m, delta_m_percent
from ..studies import Cell, Study

COLUMNS = ["method", "condition", "seed", "lr", "macro", "worst", "epochs", "reach", "peak"]


class Results(Protocol):
    """Where finished runs are looked up: a store, or whatever was gathered from several places."""

    def result(self, run: Run) -> dict[str, Any] | None: ...
    def history(self, run: Run) -> list[dict[str, Any]]: ...


def collect(
    study: Study, store: Results, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
) -> pd.DataFrame:
    """The finished runs of a study's grid: where each stands, its scores and metrics, and each task's score.

    `reach` is the largest |z|/τ that BPGS ends with, `peak` the largest after any epoch: 1 is the edge of the chart.
    """
    rows = []
    for cell, result in _finished(study, store, seeds=seeds, epochs=epochs, device=device):
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
    rows = groups.agg(
        lr=("lr", "first"), macro=("macro", "mean"), worst=("worst", "min"),
        count=("macro", "size"), scored=("macro", "count"),
    ).reset_index()  # fmt: skip
    rows.loc[rows["scored"] < rows["count"], ["macro", "worst"]] = float("nan")  # where a task diverged
    whole = rows["count"] == rows["condition"].map(tasks)
    return pd.concat([frame[~alone], rows[whole].drop(columns=["count", "scored"])], ignore_index=True)


class Which(TypedDict, total=False):
    """Which runs of a study's grid."""

    seeds: Iterable[int] | None
    epochs: int | None
    device: str


def histories(study: Study, results: Results, **which: Unpack[Which]) -> pd.DataFrame:
    """Every recorded epoch of the finished runs: where it stands, its metrics, and of each task what was recorded.

    "watched" is the sum of losses that early stopping looks at; "weight:task" what multiplied a task; "z:task" is z/τ
    and "theta:task" θ at the end of the epoch, epoch 0 being the first step where that was recorded.
    """
    rows = []
    for cell, result in _finished(study, results, **which):
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
            rows.append(place | numbers | watched | row.get("metrics", {}) | each)
    return pd.DataFrame(rows, columns=None if rows else ["method", "condition", "seed", "epoch"])


def _by_task(what: str, tasks: list[str], values: list[float]) -> dict[str, float]:
    return {f"{what}:{task}": value for task, value in zip(tasks, values, strict=True)}


def _finished(
    study: Study,
    results: Results,
    *,
    seeds: Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The cells that have a result, and it.

    A table that wants to be asked for borrows runs of the usual ones, at the seeds of its own: otherwise means over
    unlike seeds would stand side by side. Without runs of its own it is empty.
    """
    cells = list(study.grid(seeds=seeds or study.every_seed, epochs=epochs, device=device))
    found = {run: results.result(run) for run in dict.fromkeys(cell.run for cell in cells)}
    usual = {cell.run for cell in cells if not cell.condition.asked}
    own = {(c.condition.key, c.run.seed) for c in cells if found[c.run] is not None and c.run not in usual}
    for cell in cells:
        result = found[cell.run]
        if result is not None and (not cell.condition.asked or (cell.condition.key, cell.run.seed) in own):
            yield cell, result


def at(frame: pd.DataFrame, seeds: Iterable[int]) -> pd.DataFrame:
    """The runs at these seeds, Δ_M measured against Static there."""
    chosen = frame[frame["seed"].isin(list(seeds))]
    return _with_deltas(chosen) if "delta_m" in chosen and set(UP) <= set(chosen) else chosen


def _with_deltas(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds Δ_M of each run, in both conventions, against the mean of Static over the seeds that its table has.

    A run at a seed that Static lacks has none: means over unlike seeds are not compared. Both are linear in the
    metrics, so their means over seeds are those that follow from mean metrics.
    """
    static = frame[frame["method"] == "Static"].drop_duplicates("seed").set_index("seed")
    static = static.reindex(columns=list(UP)).dropna()  # where it did not diverge
    baselines = {
        key: static[static.index.isin(here["seed"])].mean().to_dict() for key, here in frame.groupby("condition")
    }
    none = dict.fromkeys(UP, float("nan"))
    rows = [
        (row, baselines[row["condition"]] if row["seed"] in static.index else none) for row in frame.to_dict("records")
    ]
    return frame.assign(
        delta_m=[delta_m(row, baseline) for row, baseline in rows],
        delta_m_percent=[delta_m_percent(row, baseline) for row, baseline in rows],
    )


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Where several learning rates were tried, each method keeps the one with the best mean macro score."""
    best = by_score(frame, ["method", "lr"]).reset_index().drop_duplicates("method").set_index("method")["lr"]
    return frame[frame["lr"] == frame["method"].map(best)].reset_index(drop=True)


def by_score(frame: pd.DataFrame, of: str | list[str]) -> pd.DataFrame:
    """Number and mean of the macro scores of each group, the best group first.

    One that has fewer scores than another stands behind it: what did not diverge there is no fair sample.
    """
    return frame.groupby(of)["macro"].agg(["count", "mean"]).sort_values(["count", "mean"], ascending=False)
