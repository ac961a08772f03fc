"""BPGS: bounded log-variances anchored on the batch's own log-loss statistics (the paper's §3).

The coordinates θ and the losses have shape (…, T); everything broadcasts over the leading dimensions. Losses that are
not finite count as absent: weight 0, no gradient, statistics over the tasks that are present.
"""

import math
from typing import Literal, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ._masking import masked_mean, masked_softmax, split_absent
from ._step import Step, finish

ChartKind = Literal["batch", "stateless"]


class Anchor(TypedDict, total=False):
    """How the chart is tied to the losses: the radius's margin, and the floors under L and under the spread."""

    margin: float
    eps_log: float
    eps_std: float


class ChartOptions(Anchor, total=False):
    """Which chart it is; the bounds are those of the stateless one."""

    chart: ChartKind
    s_min: float
    s_max: float


EXPONENT_LIMIT = 600.0  # ω·L must stay under the range of float64: 0 · ∞ would poison θ
CALIBRATION_EDGE = 1e-4  # calibration keeps σ(θ) this far from 0 and 1


class Chart(NamedTuple):
    """Where each task stands in the bounded chart."""

    mu: Tensor  # μ, the mean log-loss, (…, 1)
    std: Tensor  # ς̄, the floored spread of the log-losses, (…, 1)
    width: Tensor  # of the interval that holds s, (…, 1)
    z_over_tau: Tensor  # 2σ(θ) − 1: ±1 is the boundary
    slope: Tensor  # σ(θ)(1 − σ(θ)): how much θ can still move its task, at most 1/4
    s: Tensor  # the log-variance
    omega: Tensor  # the precision e^{−s}
    alpha: Tensor  # the normalised precision: the task's weight
    theta: Tensor


def radius(tasks: int, margin: float = 0.1) -> float:
    """τ_T = √(T − 1) + margin: no coordinate of a standardised T-vector is larger than √(T − 1)."""
    return math.sqrt(tasks - 1) + margin


def statistics(losses: Tensor, *, eps_log: float = 1e-8, eps_std: float = 1e-4) -> tuple[Tensor, Tensor, Tensor]:
    """Returns μ, ς̄ (both (…, 1)) and the centred log-losses (…, T), 0 where a task is absent."""
    x, present = split_absent(losses)
    log = x.clamp_min(eps_log).log()
    mu = masked_mean(log, present)
    centred = (log - mu) * present
    std = masked_mean(centred.square(), present).sqrt().clamp_min(eps_std)
    return mu, std, centred


def bpgs_chart(
    theta: Tensor,
    losses: Tensor,
    *,
    chart: ChartKind = "batch",
    margin: float = 0.1,
    eps_log: float = 1e-8,
    eps_std: float = 1e-4,
    s_min: float = -10.0,
    s_max: float = 10.0,
) -> Chart:
    """Evaluates the chart: s = μ + ς̄ τ (2σ(θ) − 1), or s = s_min + (s_max − s_min) σ(θ) for the stateless one."""
    mu, std, _ = statistics(losses, eps_log=eps_log, eps_std=eps_std)
    theta = theta.detach().to(mu.dtype)
    upper, lower = theta.sigmoid(), (-theta).sigmoid()  # both, because 1 − σ(θ) loses its digits for large θ
    position = upper - lower
    reach = std * radius(losses.shape[-1], margin)
    if chart == "stateless":
        width, s = torch.full_like(std, s_max - s_min), s_min + (s_max - s_min) * upper
    else:
        width, s = 2 * reach, mu + reach * position
    omega = (-s).clamp_max(EXPONENT_LIMIT).exp()
    alpha = masked_softmax(-s, torch.isfinite(losses))
    return Chart(mu, std, width, position, upper * lower, s, omega, alpha, theta)


def bpgs_calibrate(
    theta: Tensor,
    losses: Tensor,
    calibrated: Tensor,
    *,
    margin: float = 0.1,
    eps_log: float = 1e-8,
    eps_std: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """Starts each task where it first appears: θ = logit((z/τ + 1)/2) with z its standardised log-loss.

    Returns θ and the mask of calibrated tasks; tasks that are absent or calibrated already keep their θ.
    """
    _, std, centred = statistics(losses, eps_log=eps_log, eps_std=eps_std)
    share = 0.5 + centred / (std * (2 * radius(losses.shape[-1], margin)))
    start = torch.logit(share, CALIBRATION_EDGE).to(theta.dtype)
    present = torch.isfinite(losses)
    return torch.where(present & ~calibrated, start, theta.detach()), calibrated | present


def bpgs(
    theta: Tensor,
    losses: Tensor,
    *,
    split: bool = True,
    normalise: bool = True,
    theta_gain: float = 100.0,
    **options: Unpack[ChartOptions],
) -> Step:
    """One BPGS step.

    Split: the objective is J_net = Σ sg[α_i] L_i, and θ receives g_θ ∇J_unc, J_unc = Σ ½ ω_i L_i + ½ s_i.
    Not split: the objective is J_net + J_unc with only the statistics detached, and θ receives g_θ times its gradient.
    """
    at = bpgs_chart(theta, losses, **options)
    x, present = split_absent(losses)
    omega = at.omega * present
    weights = at.alpha if normalise else omega
    j_net = (weights * x).sum(-1)
    d_s = 0.5 * (1 - omega * x)  # ∂J_unc/∂s, with L as it is: only the logarithm is floored
    objective = j_net
    if not split:
        objective = j_net + 0.5 * (omega * x + at.s * present).sum(-1)
        d_s = d_s - (at.alpha * (x - j_net.unsqueeze(-1)) if normalise else omega * x)
        weights = weights + 0.5 * omega
    return finish(losses, objective, weights, theta_gain * d_s * at.width * at.slope * present)


def bpgs_weights(theta: Tensor, losses: Tensor, *, normalise: bool = True, **options: Unpack[ChartOptions]) -> Tensor:
    """The weights α that BPGS gives to losses (…, T) at θ (…, T); the raw precisions ω with `normalise=False`."""
    return bpgs(theta, losses, normalise=normalise, **options).weights
