"""Results from disk as one table: a row for each run."""

from collections.abc import Iterable

import pandas as pd

from ..engine import Store
from ..studies import Study

COLUMNS = ["method", "condition", "seed", "lr", "macro", "worst", "reach"]


def collect(
    study: Study, store: Store, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
) -> pd.DataFrame:
    """The finished runs of a study's grid: method, condition, seed, lr, macro, worst, reach, and each task's score.

    `reach` is the largest |z|/τ that BPGS ends with: 1 is the edge of the chart.
    """
    rows = []
    for cell in study.grid(seeds=seeds, epochs=epochs, device=device):
        result = store.result(cell.run)
        if result is not None:
            place = {"method": cell.method, "condition": cell.condition.key, "seed": cell.run.seed}
            found = {"lr": cell.run.network_lr, "macro": result["macro"], "worst": result["worst"]}
            position = result["chart"].get("z_over_tau", [])
            found["reach"] = max(map(abs, position), default=float("nan"))
            rows.append(place | found | result["scores"])
    return pd.DataFrame(rows, columns=None if rows else COLUMNS)


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Where several learning rates were tried, each method keeps the one with the best mean macro score."""
    means = frame.groupby(["method", "lr"])["macro"].mean()
    best = {method: means[method].idxmax() for method in frame["method"].unique()}
    return frame[frame["lr"] == frame["method"].map(best)].reset_index(drop=True)
