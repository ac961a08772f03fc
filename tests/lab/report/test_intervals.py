"""Intervals over seeds against SciPy."""

import numpy as np
import pytest
from scipy import stats

from counterpoise.lab.report.intervals import RESAMPLES, bootstrap_interval, mean_interval, seed_interval


@pytest.mark.parametrize("count", [5, 10])
def test_interval_of_a_mean_is_the_bootstrap_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert mean_interval(values) == pytest.approx(tuple(expected), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_interval_of_a_mean_of_few_values_is_the_t_interval(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert mean_interval(values) == pytest.approx(tuple(expected), rel=1e-12)


def test_t_interval_of_a_ratio_has_the_standard_error_of_all_resamples() -> None:
    ours, theirs = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0, 3.0])
    low, high = seed_interval(lambda seeds: ours[seeds].sum(-1) / theirs[seeds].sum(-1), 3)
    ratios = [
        (ours[i] + ours[j] + ours[k]) / (theirs[i] + theirs[j] + theirs[k])
        for i in range(3)
        for j in range(3)
        for k in range(3)
    ]
    reach = stats.t.ppf(0.975, 2) * np.std(ratios) * np.sqrt(3 / 2)
    assert (low, high) == pytest.approx((1 - reach, 1 + reach), rel=1e-12)


def test_three_percentiles_do_not_exceed_the_range() -> None:
    values = np.array([1.0, 2.0, 4.0])
    assert bootstrap_interval(lambda resample: values[resample].mean(-1), 3) == (1.0, 4.0)


def test_resamples_without_a_finite_value_are_left_out() -> None:
    values = np.array([1.0, np.inf, 3.0])
    low, high = bootstrap_interval(lambda resample: values[resample].mean(-1), 3)
    assert 1 <= low < high <= 3
    for count in (2, 6):
        assert np.isnan(mean_interval(np.full(count, np.nan))).all()
    assert mean_interval(np.array([2.0])) == (2.0, 2.0)
