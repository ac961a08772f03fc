"""Loss-space rules for one loss vector in Python floats.

For a few tasks, dispatching tensor operations costs far more than the arithmetic. Each rule is the counterpart of the
tensor function of the same name; tests compare the two. All losses are finite: absent tasks are left to the tensor
functions, and so are numbers that overflow, for which Python raises an error.
"""

from collections.abc import Sequence
from math import exp, log
from operator import mul
from typing import NamedTuple

FLOOR = 1e-8  # lower bound of a loss in logarithms and reciprocals


class FloatStep(NamedTuple):
    """Result of a rule, as `Step`, in Python floats."""

    objective: float
    weights: list[float]
    gradient: list[float] | None = None


def weighted_sum(weights: list[float], losses: Sequence[float]) -> FloatStep:
    """Compute Σ w_i L_i."""
    return FloatStep(sum(map(mul, weights, losses)), weights)


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the softmax of the logits."""
    largest = max(logits)
    powers = [exp(logit - largest) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def uw_o(losses: Sequence[float], scales: Sequence[float] | None = None, *, normalise: bool = False) -> FloatStep:
    """Weight each loss by 1/L_i, or by the reciprocals of other scales."""
    scales = [max(scale, FLOOR) for scale in (losses if scales is None else scales)]
    weights = softmax([-log(scale) for scale in scales]) if normalise else [1.0 / scale for scale in scales]
    return weighted_sum(weights, losses)


def uw_so(losses: Sequence[float], *, temperature: float) -> FloatStep:
    """Weight the losses by softmax((1/L) / temperature)."""
    return weighted_sum(softmax([1.0 / max(loss, FLOOR) / temperature for loss in losses]), losses)


def geometric_mean(losses: Sequence[float]) -> FloatStep:
    """Compute the geometric mean of the losses."""
    losses = [max(loss, FLOOR) for loss in losses]
    mean = exp(sum(map(log, losses)) / len(losses))
    return FloatStep(mean, [mean / (len(losses) * loss) for loss in losses])


def log_sum(losses: Sequence[float]) -> FloatStep:
    """Compute Σ log L_i."""
    losses = [max(loss, FLOOR) for loss in losses]
    return FloatStep(sum(map(log, losses)), [1.0 / loss for loss in losses])


def stch(losses: Sequence[float], nadir: Sequence[float], *, mu: float) -> FloatStep:
    """Compute the smooth Tchebycheff objective μ log Σ exp(ℓ_i/μ) with ℓ_i = log(L_i/nadir_i)."""
    losses = [max(loss, FLOOR) for loss in losses]
    exponents = [log(loss / max(reference, FLOOR)) / mu for loss, reference in zip(losses, nadir, strict=True)]
    largest = max(exponents)
    objective = mu * (largest + log(sum([exp(exponent - largest) for exponent in exponents])))
    return FloatStep(objective, [share / loss for share, loss in zip(softmax(exponents), losses, strict=True)])


def famo(logits: Sequence[float], losses: Sequence[float], floor: Sequence[float]) -> FloatStep:
    """Compute FAMO's objective Σ z_i log D_i / Σ z_i / D_i with z = softmax(logits) and D = L − floor + 1e-8."""
    shares = softmax(logits)
    distances = [max(loss - low + FLOOR, FLOOR) for loss, low in zip(losses, floor, strict=True)]
    ratios = [share / distance for share, distance in zip(shares, distances, strict=True)]
    total = sum(ratios)
    objective = sum([share / total * log(distance) for share, distance in zip(shares, distances, strict=True)])
    return FloatStep(objective, [ratio / total for ratio in ratios])


def kendall(log_vars: Sequence[float], losses: Sequence[float]) -> FloatStep:
    """Compute Kendall's objective Σ ½ e^{−s_i} L_i + ½ s_i."""
    weights = [0.5 * exp(-s) for s in log_vars]
    weighted = [w * x for w, x in zip(weights, losses, strict=True)]
    objective = sum([w + 0.5 * s for w, s in zip(weighted, log_vars, strict=True)])
    return FloatStep(objective, weights, [0.5 - w for w in weighted])


def kendall_l1(log_vars: Sequence[float], losses: Sequence[float]) -> FloatStep:
    """Compute Σ α_i L_i with α = softmax(−s); s is trained as in `kendall`."""
    step = weighted_sum(softmax([-s for s in log_vars]), losses)
    return step._replace(gradient=[0.5 * (1 - exp(-s) * x) for s, x in zip(log_vars, losses, strict=True)])


def imtl_l(log_scales: Sequence[float], losses: Sequence[float]) -> FloatStep:
    """Compute IMTL-L's objective Σ e^{s_i} L_i − s_i."""
    weights = [exp(s) for s in log_scales]
    weighted = [w * x for w, x in zip(weights, losses, strict=True)]
    return FloatStep(
        sum([w - s for w, s in zip(weighted, log_scales, strict=True)]), weights, [w - 1 for w in weighted]
    )
