"""Random histories and results in the format of the trainers, for tests and benchmarks of reports."""

from typing import Any

import numpy as np

from counterpoise.lab.engine import Run

METRICS = {
    "miou": 0.3, "pixel_accuracy": 0.6, "within_11": 0.25, "within_22": 0.5, "within_30": 0.6, "abs_rel": 0.2,
    "rmse": 0.8, "angle": 26.0, "angle_median": 20.0, "total_loss": 2.0, "macro_f1": 0.43, "micro_f1": 0.6,
    "hamming": 0.77, "r2": -0.4, "mae": 23.0,
}  # fmt: skip


def fake_run(run: Run, tasks: tuple[str, ...], epochs: int = 4) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a history and a result, drawn from a stream that is seeded by the key of the run."""
    rng = np.random.default_rng(int(run.key[:8], 16))
    level, history = rng.normal(0.6, 0.02), []
    for epoch in range(1, epochs + 1):
        z = rng.uniform(-0.9, 0.9, len(tasks))
        chart = {"z_over_tau": z.tolist(), "theta": (2 * np.arctanh(z)).tolist(), "mu": 0.0, "std": 1.0}
        row: dict[str, Any] = {"epoch": epoch, "macro": level, "worst": level - 0.2, "monitor": -level}
        row |= {"loss": [1.0] * len(tasks), "weight": rng.dirichlet([3.0] * len(tasks)).tolist()}
        row |= {"metrics": {name: value * rng.normal(1, 0.05) for name, value in METRICS.items()}}
        history.append(row | {"chart": chart if run.recipe.name == "bpgs" else {}})
    last = history[-1]
    result = {name: last[name] for name in ("macro", "worst", "metrics", "chart")}
    result |= {"epochs": epochs, "peak": 0.95, "best": {"epoch": 1, "value": level}}
    result |= {"weights": dict(zip(tasks, last["weight"], strict=True)), "scores": dict.fromkeys(tasks, level)}
    return history, result
