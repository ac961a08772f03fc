"""BPGS: bounded log-variances, anchored on the log-loss statistics of the batch (section 3 of the paper).

The coordinates θ and the losses have shape (…, T); all functions broadcast over the leading dimensions. A loss that is
not finite marks an absent task: it gets weight 0 and no gradient, and the statistics leave it out.
"""

import math
from typing import Literal, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ._masking import masked_mean, masked_softmax, split_absent
from ._step import Step, make_step

ChartKind = Literal["batch", "stateless"]


class Anchor(TypedDict, total=False):
    """Options that tie the chart to the losses: the margin of the radius, and lower bounds of L and of its spread."""

    margin: float
    eps_log: float
    eps_std: float


class ChartOptions(Anchor, total=False):
    """Options of the chart. The bounds `s_min` and `s_max` apply to the stateless chart."""

    chart: ChartKind
    s_min: float
    s_max: float


EXPONENT_LIMIT = 600.0  # bound of −s, which keeps ω·L in the range of float64: 0 · ∞ would make θ NaN
CALIBRATION_EDGE = 1e-4  # distance of σ(θ) from 0 and 1 that calibration keeps


class Chart(NamedTuple):
    """Position of each task in the bounded chart.

    Attributes:
        mu (Tensor): Mean log-loss μ, shape (…, 1).
        std (Tensor): Spread ς̄ of the log-losses, at least `eps_std`, shape (…, 1).
        width (Tensor): Width of the interval of s, shape (…, 1).
        z_over_tau (Tensor): 2σ(θ) − 1, shape (…, T); ±1 is the boundary.
        slope (Tensor): σ(θ)(1 − σ(θ)), shape (…, T): the sensitivity of the position to θ, at most 1/4.
        s (Tensor): Log-variances, shape (…, T).
        omega (Tensor): Precisions e^{−s}, shape (…, T).
        alpha (Tensor): Normalised precisions, the task weights, shape (…, T).
        theta (Tensor): The coordinates θ, shape (…, T).
    """

    mu: Tensor
    std: Tensor
    width: Tensor
    z_over_tau: Tensor
    slope: Tensor
    s: Tensor
    omega: Tensor
    alpha: Tensor
    theta: Tensor


def radius(tasks: int, margin: float = 0.1) -> float:
    """Return the radius τ = √(T − 1) + margin: no entry of a standardised T-vector exceeds √(T − 1).

    Args:
        tasks (int): Number of tasks T.
        margin (float, optional): Margin beyond the bound. Default: 0.1.

    Returns:
        float: The radius.

    Example:
        >>> radius(5)
        2.1
    """
    return math.sqrt(tasks - 1) + margin


def statistics(losses: Tensor, *, eps_log: float = 1e-8, eps_std: float = 1e-4) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the statistics of the log-losses over the present tasks.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        eps_log (float, optional): Lower bound of a loss in the logarithm. Default: 1e-8.
        eps_std (float, optional): Lower bound of the spread. Default: 1e-4.

    Returns:
        tuple[Tensor, Tensor, Tensor]: The mean μ and the spread ς̄, both of shape (…, 1), and the centred log-losses,
        shape (…, T), 0 for absent tasks.

    Example:
        >>> mu, std, centred = statistics(torch.tensor([1.0, 1.0, float("nan")]))
        >>> mu.item(), std.item(), centred.tolist()
        (0.0, 0.0001, [0.0, 0.0, 0.0])
    """
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
    """Evaluate the chart: s = μ + ς̄ τ (2σ(θ) − 1), or s = s_min + (s_max − s_min) σ(θ) for the stateless chart.

    Args:
        theta (Tensor): Coordinates θ, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        chart (str, optional): `"batch"` or `"stateless"`. Default: `"batch"`.
        margin (float, optional): Margin of the radius τ. Default: 0.1.
        eps_log (float, optional): Lower bound of a loss in the logarithm. Default: 1e-8.
        eps_std (float, optional): Lower bound of the spread ς̄. Default: 1e-4.
        s_min (float, optional): Lower bound of s in the stateless chart. Default: -10.0.
        s_max (float, optional): Upper bound of s in the stateless chart. Default: 10.0.

    Returns:
        Chart: The statistics, positions, log-variances and weights.

    Example:
        >>> bpgs_chart(torch.zeros(2), torch.tensor([1.0, 300.0])).alpha
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    mu, std, _ = statistics(losses, eps_log=eps_log, eps_std=eps_std)
    theta = theta.detach().to(mu.dtype)
    upper, lower = _sigmoid(theta), _sigmoid(-theta)  # both, because 1 − σ(θ) loses its digits for large θ
    position = upper - lower
    reach = std * radius(losses.shape[-1], margin)
    if chart == "stateless":
        width, s = torch.full_like(std, s_max - s_min), s_min + (s_max - s_min) * upper
    else:
        width, s = 2 * reach, mu + reach * position
    omega = (-s).clamp_max(EXPONENT_LIMIT).exp()
    alpha = masked_softmax(-s, torch.isfinite(losses))
    return Chart(mu, std, width, position, upper * lower, s, omega, alpha, theta)


def _sigmoid(x: Tensor) -> Tensor:
    """Return σ(x). On a CPU, `torch.sigmoid` rounds the last entries of a tensor differently from the others, so that
    the result of a replica would depend on the number of replicas."""
    return ((-x).exp() + 1).reciprocal()


def bpgs_calibrate(
    theta: Tensor,
    losses: Tensor,
    calibrated: Tensor,
    *,
    margin: float = 0.1,
    eps_log: float = 1e-8,
    eps_std: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """Initialise θ of each task when it first appears: θ = logit((z/τ + 1)/2) with z its standardised log-loss.

    Args:
        theta (Tensor): Coordinates θ, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        calibrated (Tensor): Boolean mask of the tasks that are calibrated already, shape (…, T).
        margin (float, optional): Margin of the radius τ. Default: 0.1.
        eps_log (float, optional): Lower bound of a loss in the logarithm. Default: 1e-8.
        eps_std (float, optional): Lower bound of the spread. Default: 1e-4.

    Returns:
        tuple[Tensor, Tensor]: The new θ and the new mask. Absent and calibrated tasks keep their θ.

    Example:
        >>> theta, calibrated = bpgs_calibrate(torch.zeros(2), torch.tensor([1.0, 300.0]), torch.zeros(2).bool())
        >>> theta
        tensor([-3.0445,  3.0445])
    """
    _, std, centred = statistics(losses, eps_log=eps_log, eps_std=eps_std)
    share = 0.5 + centred / (std * (2 * radius(losses.shape[-1], margin)))
    share = share.clamp(CALIBRATION_EDGE, 1 - CALIBRATION_EDGE)
    start = (share / (1 - share)).log().to(theta.dtype)
    present = torch.isfinite(losses)
    return torch.where(present & ~calibrated, start, theta.detach()), calibrated | present


def bpgs(
    theta: Tensor,
    losses: Tensor,
    *,
    scales: Tensor | None = None,
    split: bool = True,
    normalise: bool = True,
    theta_gain: float = 100.0,
    **options: Unpack[ChartOptions],
) -> Step:
    """Compute one step of BPGS.

    With `split`, the objective is J_net = Σ sg[α_i] L_i, and θ gets g_θ ∇J_unc with J_unc = Σ ½ ω_i L_i + ½ s_i.
    Without it, the objective is J_net + J_unc with only the statistics detached, and θ gets g_θ times its gradient.

    With `scales` n_i, such as gradient norms, the statistics and J_unc = Σ ½ ω_i n_i + ½ s_i use them in place of the
    losses, so that the weights tend to 1/n_i. J_net is still the weighted sum of the losses. Pass the scales to
    :func:`bpgs_calibrate` and :func:`bpgs_chart` as the losses.

    Args:
        theta (Tensor): Coordinates θ, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        scales (Tensor, optional): Positive numbers to use instead of the losses in the statistics and in J_unc, shape
            (…, T). They are constants for the network. A task without a finite scale counts as absent. Default: None.
        split (bool, optional): Whether the network and θ minimise different objectives. Default: True.
        normalise (bool, optional): Whether the weights are α, which sum to 1, instead of ω. Default: True.
        theta_gain (float, optional): Factor g_θ on the gradient of θ. Default: 100.0.
        **options: Options of :func:`bpgs_chart`.

    Returns:
        Step: The objective, the weights, and the gradient of θ.

    Example:
        >>> step = bpgs(torch.tensor([-3.0, 3.0]), torch.tensor([1.0, 300.0]))
        >>> step.weights
        tensor([0.9966, 0.0034])
    """
    x, present = split_absent(losses)
    anchors, n = losses, x
    if scales is not None:
        anchors = torch.where(present, scales.detach(), torch.nan)
        n, present = split_absent(anchors)
    position = bpgs_chart(theta, anchors, **options)
    omega = position.omega * present
    weights = position.alpha if normalise else omega
    j_net = (weights * x).sum(-1)
    d_s = 0.5 * (1 - omega * n)  # ∂J_unc/∂s; the lower bound of L applies only to its logarithm
    objective = j_net
    if not split:
        objective = j_net + 0.5 * (omega * n + position.s * present).sum(-1)
        d_s = d_s - (position.alpha * (x - j_net.unsqueeze(-1)) if normalise else omega * x)
        if scales is None:
            weights = weights + 0.5 * omega
    return make_step(losses, objective, weights, theta_gain * d_s * position.width * position.slope * present)


def bpgs_weights(
    theta: Tensor,
    losses: Tensor,
    *,
    scales: Tensor | None = None,
    normalise: bool = True,
    **options: Unpack[ChartOptions],
) -> Tensor:
    """Return the weights of :func:`bpgs`.

    Args:
        theta (Tensor): Coordinates θ, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        scales (Tensor, optional): Positive numbers to use instead of the losses, shape (…, T). Default: None.
        normalise (bool, optional): Whether to return α, which sum to 1, instead of the precisions ω. Default: True.
        **options: Options of :func:`bpgs_chart`.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> bpgs_weights(torch.tensor([-3.0, 3.0]), torch.tensor([1.0, 300.0]))
        tensor([0.9966, 0.0034])
    """
    return bpgs(theta, losses, scales=scales, normalise=normalise, **options).weights
