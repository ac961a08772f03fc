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

    Where the study tries several learning rates, each method keeps the one with the best mean macro score.
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
    frame = pd.DataFrame(rows, columns=None if rows else COLUMNS)
    return _best_rates(frame) if study.rates else frame


def _best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    means = frame.groupby(["method", "lr"])["macro"].mean()
    best = {method: means[method].idxmax() for method in frame["method"].unique()}
    return frame[frame["lr"] == frame["method"].map(best)].reset_index(drop=True)
