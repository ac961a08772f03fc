"""Percentile bootstrap with a fixed random stream."""

from collections.abc import Callable
from functools import cache

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
    values = statistic(_resamples(count))
    values = values[np.isfinite(values)]  # a ratio may have a denominator of zero in some resamples
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


@cache
def _resamples(count: int) -> NDArray[np.intp]:
    """Return the indices of all resamples, (resamples, count)."""
    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count))


def bootstrap_mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of a mean."""
    return bootstrap_interval(lambda resample: values[resample].mean(-1), len(values))
