"""Limits on what a single batch may contribute to a running statistic.

A running mean m ← m + r(x − m) needs log(x / m) / r steps to forget a value x. Values that are too large to be a
measurement are limited before they enter it; all others enter unchanged.
"""

import torch
from torch import Tensor

OUTLIER = 1e6  # ratio of a value to its running mean above which the value is limited
GROWTH = 10.0  # a limited value multiplies its running mean by about this factor, at most
UNUSABLE = 1e19  # the square of a larger number overflows in float32


def limit_outliers(values: Tensor, means: Tensor, rate: float | Tensor, *, least_mean: float = 0.0) -> Tensor:
    """Return the values, limited where they exceed 1e6 times the running mean that they are to update.

    A lasting change of scale still reaches the mean within a few steps, because each of them may multiply it by 10.

    Args:
        values: new values, any shape.
        means: running means, same shape. A mean that is not above `least_mean`, or not known (NaN), sets no limit.
        rate: rate r of the means.
        least_mean: absolute value of a mean up to which nothing is limited.
    """
    size = means.detach().to(values.dtype).abs()
    outlier = (size > least_mean) & (values.abs() > OUTLIER * size)
    least_rate = GROWTH / OUTLIER
    rate = rate.to(values.dtype).clamp_min(least_rate) if isinstance(rate, Tensor) else max(rate, least_rate)
    return torch.where(outlier, values.sign() * size * (GROWTH / rate), values)


def outlier_factors(lengths: Tensor, means: Tensor, rates: float | Tensor) -> Tensor:
    """Return the factors, 1 or less, that limit vectors of the given lengths as `limit_outliers` limits numbers."""
    limited = limit_outliers(lengths, means, rates)
    return torch.where(limited < lengths, limited / lengths, 1.0)
