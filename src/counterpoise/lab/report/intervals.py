"""95 % intervals: a percentile bootstrap with a fixed random stream, and Student's t for few seeds."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 10_000
LEVEL = 0.95
FEW = 5  # percentiles of fewer values are too narrow, because no resample exceeds the range of the values
SEEDS_OF_AN_INTERVAL = 3
"""Tables show no interval of fewer seeds. That of two seeds is narrow whenever they are equal by chance."""

Statistic = Callable[[NDArray[np.intp]], NDArray[np.float64]]
"""Maps indices of observations (…, count) to values (…)."""


def bootstrap_interval(statistic: Statistic, count: int) -> tuple[float, float]:
    """Return the percentile interval of a statistic of `count` observations, or NaN if no resample has a finite value.

    The statistic receives indices, so that quantities computed from several paired samples are resampled together.
    """
    values = statistic(_resamples(count))
    values = values[np.isfinite(values)]  # a ratio may have a denominator of zero in some resamples
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def seed_interval(statistic: Statistic, count: int) -> tuple[float, float]:
    """Return the interval of a statistic over `count` seeds.

    From five seeds on, this is the bootstrap interval. With two to four seeds, it is the interval of Student's t with
    the bootstrap standard error: the usual t interval, if the statistic is a mean.
    """
    if not 1 < count < FEW:
        return bootstrap_interval(statistic, count)
    values = statistic(np.indices((count,) * count).reshape(count, -1).T)  # all resamples
    centre = float(statistic(np.arange(count)))
    deviation = float(values[np.isfinite(values)].std()) if np.isfinite(values).any() else float("nan")
    reach = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * deviation * (count / (count - 1)) ** 0.5
    return centre - reach, centre + reach


@cache
def _resamples(count: int) -> NDArray[np.intp]:
    """Return the indices of all resamples, (resamples, count)."""
    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count))


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of a mean over seeds or problems."""
    return seed_interval(lambda resample: values[resample].mean(-1), len(values))
