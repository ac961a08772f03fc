"""Loss-space rules with statistics or preferences, for one loss vector in Python floats.

As in `_floats`, each rule is the counterpart of the tensor function of the same name, and all losses are finite. The
statistics are lists that the caller reads from its buffers and writes back.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import copysign, exp, isnan, log, sqrt
from operator import mul
from typing import NamedTuple

from ._floats import FLOOR, FloatStep, softmax
from ._outliers import GROWTH, OUTLIER, UNUSABLE
from .cov_weighting import OBSERVATIONS, VARIANCE_FLOOR
from .go4align import COST_ROUNDING
from .scalarisation import DISTANCE_ROUNDING, DISTANCE_SMOOTHING

SMALLEST = 2.0**-1022  # the smallest normal number


class CoVLists(NamedTuple):
    """Running statistics of `cov_update`, as `CoVState`."""

    steps: list[float]
    mean_loss: list[float]
    mean_ratio: list[float]
    variance: list[float]


def limit_outlier(value: float, mean: float, rate: float) -> float:
    """Return the value, limited as in `limit_outliers`. A mean that is NaN sets no limit."""
    size = abs(mean)
    if size > FLOOR and abs(value) > OUTLIER * size:
        return copysign(size * (GROWTH / max(rate, GROWTH / OUTLIER)), value)
    return value


def ratio_weights(losses: Sequence[float], reference: Sequence[float], *, temperature: float) -> list[float]:
    """Return T · softmax(L / (τ L′)), the weights of SoftAdapt. A loss without an earlier value has ratio 1."""
    ratios = [x / (temperature * y) for x, y in zip(losses, reference, strict=True)]
    if isnan(sum(ratios)):
        ratios = [1 / temperature if isnan(ratio) else ratio for ratio in ratios]
    tasks = len(ratios)
    return [share * tasks for share in softmax(ratios)]


def relobralo_weights(
    losses: Sequence[float], previous: Sequence[float], kept: Sequence[float], *, alpha: float, temperature: float
) -> list[float]:
    """Return α λ + (1 − α) T · softmax(L / (τ L′)), where λ are the weights to keep."""
    recent = ratio_weights(losses, previous, temperature=temperature)
    return [alpha * old + (1 - alpha) * new for old, new in zip(kept, recent, strict=True)]


def cov_weights(statistics: CoVLists) -> list[float]:
    """Return the weights of CoV-Weighting, w_i ∝ std(l_i) / mean(l_i) with Σw = 1."""
    steps, _, means, variances = statistics
    least = sqrt(SMALLEST)
    variation = [
        sqrt(max(variance, 0.0) + VARIANCE_FLOOR) / max(abs(mean), least)
        for mean, variance in zip(means, variances, strict=True)
    ]
    if min(steps) < OBSERVATIONS:
        known = [v for n, v in zip(steps, variation, strict=True) if n >= OBSERVATIONS]
        others = sum(known) / len(known) if known else 1.0
        variation = [v if n >= OBSERVATIONS else others for n, v in zip(steps, variation, strict=True)]
    largest = max(variation)
    shares = [v / largest for v in variation]
    total = sum(shares)
    return [share / total for share in shares]


def cov_update(statistics: CoVLists, losses: Sequence[float], *, decay: float | None) -> CoVLists:
    """Return the statistics of CoV-Weighting after the losses of one step."""
    rows = []
    for row in zip(*statistics, losses, strict=True):
        steps, mean_loss, mean_ratio, variance, x = row
        if steps >= OBSERVATIONS and mean_loss > 0 and abs(x) > UNUSABLE * mean_loss:
            rows.append(row[:-1])
            continue
        ratio = 1.0
        if steps > 0:
            x = x if decay is None else limit_outlier(x, mean_loss, 1 - decay)
            ratio = x / mean_loss
        keep = 1 - 1 / (steps + 1) if decay is None else decay * (steps > 0)
        rest = 1 - keep
        new_mean = keep * mean_ratio + rest * ratio
        new_variance = keep * variance + rest * (ratio - mean_ratio) * (ratio - new_mean)
        rows.append((steps + 1, keep * mean_loss + rest * x, new_mean, new_variance))
    return CoVLists(*map(list, zip(*rows, strict=True)))


def go4align_update(log_probabilities: Sequence[float], losses: Sequence[float], *, step_size: float) -> list[float]:
    """Return log p with p_i ∝ p_i exp(−η L_i)."""
    logits = [p - step_size * x for p, x in zip(log_probabilities, losses, strict=True)]
    largest = max(logits)
    shifted = [logit - largest for logit in logits]
    total = log(sum(map(exp, shifted)))
    return [logit - total for logit in shifted]


def go4align_weights(log_probabilities: Sequence[float], losses: Sequence[float], *, groups: int) -> list[float]:
    """Return p_i Σ_j L_j / L_i, averaged within one or two groups of tasks."""
    values = [p / max(x, FLOOR) for p, x in zip(softmax(log_probabilities), losses, strict=True)]
    total, largest, tasks = sum(losses), max(values), len(values)
    order = sorted(range(tasks), key=values.__getitem__)
    ordered = [values[i] / largest for i in order]
    start = _second_group(ordered) if groups > 1 else tasks
    means = []
    for group in (ordered[:start], ordered[start:]):
        means += [sum(group) / max(len(group), 1) * largest * total] * len(group)
    weights = [0.0] * tasks
    for i, mean in zip(order, means, strict=True):
        weights[i] = mean
    return weights


def _second_group(ordered: list[float]) -> int:
    """Return where the second cluster of the optimal partition of ascending values into at most two starts; 0: one."""
    sums, squares = list(accumulate(ordered)), list(accumulate(map(mul, ordered, ordered)))
    tasks, total, square = len(ordered), sums[-1], squares[-1]
    costs = [max(square - total * total / tasks, 0.0)]
    for start in range(1, tasks):
        value, left, left_square = ordered[start], sums[start - 1], squares[start - 1]
        right, right_square = total - (sums[start] - value), square - (squares[start] - value * value)
        below = max(left_square - left * left / start, 0.0)
        costs.append(below + max(right_square - right * right / (tasks - start), 0.0))
    limit = min(costs) + COST_ROUNDING * square
    return next(start for start, cost in enumerate(costs) if cost <= limit)


def cosmos(losses: Sequence[float], preference: Sequence[float], *, penalty: float) -> FloatStep:
    """Compute Σ p_i L_i − λ cos(p, L)."""
    norm = sqrt(sum([x * x for x in losses]))
    bound, length = max(norm, FLOOR), max(sqrt(sum([p * p for p in preference])), FLOOR)
    unit, direction = [x / bound for x in losses], [p / length for p in preference]
    cosine = sum(map(mul, direction, unit))
    along = cosine if norm > FLOOR else 0.0  # below its lower bound the norm is a constant
    return FloatStep(
        sum(map(mul, preference, losses)) - penalty * cosine,
        [p - penalty * ((d - along * u) / bound) for p, d, u in zip(preference, direction, unit, strict=True)],
    )


def pbi(losses: Sequence[float], preference: Sequence[float], reference: Sequence[float], *, theta: float) -> FloatStep:
    """Compute d₁ + θ d₂, the length of L − z along the preference ray and its distance from the ray."""
    x = [loss - low for loss, low in zip(losses, reference, strict=True)]
    length = max(sqrt(sum([p * p for p in preference])), FLOOR)
    direction = [p / length for p in preference]
    along = sum(map(mul, direction, x))
    off = [value - along * d for value, d in zip(x, direction, strict=True)]
    square = sum([value * value for value in off])
    if square <= DISTANCE_ROUNDING**2 * sum([value * value for value in x]):
        off, square = [0.0] * len(off), 0.0
    distance = sqrt(square + DISTANCE_SMOOTHING)
    weights = [d + theta * value / distance for d, value in zip(direction, off, strict=True)]
    return FloatStep(along + theta * distance, weights)
