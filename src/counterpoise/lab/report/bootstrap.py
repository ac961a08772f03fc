"""Percentile bootstrap with a fixed random stream."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95

Statistic = Callable[[NDArray[np.intp]], NDArray[np.float64]]
"""Maps indices of observations (…, count) to values (…)."""


def bootstrap_interval(statistic: Statistic, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of `count` observations, or NaN if no resample has a finite value.

    The statistic receives indices, so that quantities computed from several paired samples are resampled together.
    """
    from scipy import stats

    if count == 1:  # scipy expects two observations; every resample of one is that one
        low = high = float(statistic(np.zeros(1, dtype=np.intp)))
        return low, high

    def of_resample(indices: NDArray[np.intp], axis: int) -> Any:
        return statistic(np.moveaxis(indices, axis, -1))

    resampled = stats.bootstrap(
        (np.arange(count),), of_resample, n_resamples=RESAMPLES, vectorized=True, method="percentile",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    values = resampled.bootstrap_distribution
    values = values[np.isfinite(values)]  # a ratio may have a denominator of zero in some resamples
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def bootstrap_mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of a mean."""
    return bootstrap_interval(lambda resample: values[resample].mean(-1), len(values))
