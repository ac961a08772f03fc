"""Bootstrap intervals against SciPy."""

import numpy as np
import pytest
from scipy import stats

from counterpoise.lab.report.bootstrap import RESAMPLES, bootstrap_interval, bootstrap_mean


@pytest.mark.parametrize("count", [2, 3, 10])
def test_interval_of_a_mean_is_that_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert bootstrap_mean(values) == pytest.approx(tuple(expected), rel=1e-12)


def test_resamples_without_a_finite_value_are_left_out() -> None:
    values = np.array([1.0, np.inf, 3.0])
    low, high = bootstrap_interval(lambda resample: values[resample].mean(-1), 3)
    assert 1 <= low < high <= 3
    assert np.isnan(bootstrap_mean(np.full(2, np.nan))).all()
    assert bootstrap_mean(np.array([2.0])) == (2.0, 2.0)
