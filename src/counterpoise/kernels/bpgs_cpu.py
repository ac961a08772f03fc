"""The BPGS step for one loss vector on the CPU, in Python floats.

For three tasks, dispatching thirty tensor operations costs far more than the arithmetic. The reference implementation
is `counterpoise.functional.bpgs` after `bpgs_calibrate`; tests compare the two.
"""

from math import dist, exp, isfinite, log, log2, sqrt
from operator import mul, neg
from typing import Unpack

import torch
from torch import Tensor

from ..functional import Step
from ..functional._floats import FloatStep
from ..functional._masking import output_dtype
from ..functional._step import step_from_floats
from ..functional.bpgs import CALIBRATION_EDGE, EXPONENT_LIMIT, Anchor, radius

LN2 = log(2)
FLOAT32_MAX = torch.finfo(torch.float32).max


def bpgs(
    losses: Tensor,
    theta: Tensor,
    calibrated: Tensor,
    *,
    calibrate: bool,
    theta_gain: float,
    scales: Tensor | None = None,
    **options: Unpack[Anchor],
) -> tuple[Step, tuple[list[float], list[float]]]:
    """Calibrate θ in place where needed, and compute the step.

    The chart is anchored to `scales` if they are given, NaN for absent tasks, and otherwise to the losses. Returns the
    step, and the θ and the losses or scales that it was computed from.
    """
    values: list[float] = losses.tolist()
    anchors: list[float] = values if scales is None else scales.tolist()
    step, used_theta = bpgs_floats(
        values,
        theta,
        calibrated,
        calibrate=calibrate,
        theta_gain=theta_gain,
        anchors=anchors,
        largest=torch.finfo(output_dtype(losses)).max,
        **options,
    )
    return step_from_floats(step, output_dtype(losses)), (used_theta, anchors)


def bpgs_floats(
    losses: list[float],
    theta: Tensor,
    calibrated: Tensor,
    *,
    calibrate: bool,
    theta_gain: float,
    margin: float,
    eps_log: float,
    eps_std: float,
    anchors: list[float] | None = None,
    largest: float = FLOAT32_MAX,
) -> tuple[FloatStep, list[float]]:
    """Compute the step for losses in Python floats, as `bpgs`. Gradients are clamped to `largest`.

    The chart is anchored to `anchors`, by default the losses. Returns the step and the θ that it was computed from.
    """
    tasks, anchors = len(losses), losses if anchors is None else anchors
    present = range(tasks) if isfinite(sum(anchors)) else [i for i in range(tasks) if isfinite(anchors[i])]
    if not present:
        return FloatStep(0.0, [0.0] * tasks, [0.0] * tasks), theta.tolist()
    complete = len(present) == tasks
    x = anchors if complete else [anchors[i] for i in present]
    tau = radius(tasks, margin)

    smallest = min(x)
    bits = list(map(log2, x if smallest > eps_log else [max(v, eps_log) for v in x]))  # log2 is the fastest
    mean = sum(bits) / len(x)
    mu = LN2 * mean
    std = max(LN2 * dist(bits, [mean] * len(x)) / sqrt(len(x)), eps_std)
    if calibrate and not all(calibrated.tolist()):
        _calibrate(theta, calibrated, present, [LN2 * (v - mean) / std for v in bits], tau)

    current_theta: list[float] = theta.tolist()
    coordinates = current_theta if complete else [current_theta[i] for i in present]
    try:
        decays = list(map(exp, map(neg, coordinates)))
    except OverflowError:  # the coordinate is at the boundary of the chart
        decays = [exp(min(-v, EXPONENT_LIMIT)) for v in coordinates]
    shares = [1.0 / (1.0 + d) for d in decays]  # σ(θ); d·σ(θ) is 1 − σ(θ) to full precision
    reach = tau * std
    width, lowest = 2.0 * reach, min(shares)  # s = μ + width·(σ(θ) − ½)
    relative = [exp(width * (lowest - p)) for p in shares]
    total = sum(relative)
    alpha = [r / total for r in relative]
    weighted = list(map(mul, alpha, x))
    j_net = sum(weighted)
    omega_scale = total * exp(min(width * (0.5 - lowest) - mu, EXPONENT_LIMIT))  # ω = omega_scale · α
    gain = theta_gain * reach
    gradient = [gain * p * (d * p) * (1.0 - omega_scale * w) for d, p, w in zip(decays, shares, weighted, strict=True)]
    if smallest < 0 or gain * (1.0 + omega_scale * j_net) > FLOAT32_MAX:
        gradient = [min(max(g, -largest), largest) for g in gradient]
    if anchors is not losses:
        j_net = sum([a * losses[i] for a, i in zip(alpha, present, strict=True)])
    if not complete:
        alpha, gradient = _scatter(alpha, present, tasks), _scatter(gradient, present, tasks)
    return FloatStep(j_net, alpha, gradient), current_theta


def _calibrate(theta: Tensor, calibrated: Tensor, present: range | list[int], z: list[float], tau: float) -> None:
    """Initialise θ of present tasks that are not calibrated yet, in place."""
    done = calibrated.tolist()
    for i, coordinate in zip(present, z, strict=True):
        if not done[i]:
            share = min(max(0.5 + coordinate / (2 * tau), CALIBRATION_EDGE), 1 - CALIBRATION_EDGE)
            theta.detach()[i] = log(share / (1 - share))
            calibrated[i] = True


def _scatter(values: list[float], present: range | list[int], tasks: int) -> list[float]:
    """Return the values of present tasks at their positions, and 0 for absent tasks."""
    full = [0.0] * tasks
    for i, value in zip(present, values, strict=True):
        full[i] = value
    return full
