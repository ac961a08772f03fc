"""The BPGS step on CUDA: statistics, calibration, weights and θ-gradient of every row in one kernel launch.

The reference implementation is `counterpoise.functional.bpgs` after `bpgs_calibrate`; both compute in float64.
"""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..functional import Step
from ..functional._masking import output_dtype
from ..functional.bpgs import CALIBRATION_EDGE, EXPONENT_LIMIT, radius


@triton.jit  # type: ignore[untyped-decorator]
def _bpgs_kernel(  # type: ignore[no-untyped-def]
    losses,
    theta,
    calibrated,
    objective,
    out,
    rows,
    tau: tl.constexpr,  # constants, because run-time scalars are passed as float32
    theta_gain: tl.constexpr,
    eps_log: tl.constexpr,
    eps_std: tl.constexpr,
    largest: tl.constexpr,
    edge: tl.constexpr,
    exponent_limit: tl.constexpr,
    tasks: tl.constexpr,
    block: tl.constexpr,
    calibrate: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < tasks
    offsets = row * tasks + column

    raw = tl.load(losses + offsets, inside, other=0.0).to(tl.float64)
    present = inside & (raw - raw == 0)  # False for infinities and NaN, whose difference is NaN
    x = tl.where(present, raw, 1.0)
    count = tl.maximum(tl.sum(present.to(tl.float64), 0), 1.0)
    log = tl.log(tl.where(x > eps_log, x, tl.full((block,), eps_log, tl.float64)))
    mu = tl.sum(tl.where(present, log, 0.0), 0) / count
    centred = tl.where(present, log - mu, 0.0)
    spread = tl.sqrt(tl.sum(centred * centred, 0) / count)
    std = tl.where(spread > eps_std, spread, tl.full((), eps_std, tl.float64))

    current = tl.load(theta + offsets, inside, other=0.0)
    if calibrate:
        done = tl.load(calibrated + offsets, inside, other=1) != 0
        share = 0.5 + centred / (std * (2 * tau))
        share = tl.where(share > edge, share, tl.full((block,), edge, tl.float64))
        share = tl.where(share < 1 - edge, share, tl.full((block,), 1 - edge, tl.float64))
        current = tl.where(present & (done == 0), tl.log(share / (1 - share)).to(current.dtype), current)
        tl.store(theta + offsets, current, inside)
        tl.store(calibrated + offsets, done | present, inside)
    coordinate = current.to(tl.float64)

    decay = tl.exp(-tl.abs(coordinate))
    upper = 1 / (1 + decay)
    lower = decay * upper
    s = mu + std * tau * tl.where(coordinate >= 0, upper - lower, lower - upper)
    lowest = tl.min(tl.where(present, s, float("inf")), 0)
    relative = tl.where(present, tl.exp(lowest - s), 0.0)
    total = tl.sum(relative, 0)
    alpha = relative / tl.where(total > 0, total, 1.0)
    omega = tl.exp(tl.where(-s < exponent_limit, -s, tl.full((block,), exponent_limit, tl.float64)))
    gradient = tl.where(present, std * upper * lower * (1 - omega * x) * (theta_gain * tau), 0.0)
    limit = tl.full((block,), largest, tl.float64)
    gradient = tl.where(gradient > limit, limit, tl.where(gradient < -limit, -limit, gradient))

    # One allocation holds the weights, the gradients, and the coordinates and losses they were computed from.
    element = out.dtype.element_ty
    tl.store(out + offsets, alpha.to(element), inside)
    tl.store(out + rows * tasks + offsets, gradient.to(element), inside)
    tl.store(out + 2 * rows * tasks + offsets, coordinate.to(element), inside)
    tl.store(out + 3 * rows * tasks + offsets, raw.to(element), inside)
    tl.store(objective + row, tl.sum(alpha * x, 0).to(element))


def bpgs(
    losses: Tensor,
    theta: Tensor,
    calibrated: Tensor,
    *,
    calibrate: bool,
    theta_gain: float,
    margin: float,
    eps_log: float,
    eps_std: float,
) -> tuple[Step, tuple[Tensor, Tensor]]:
    """Calibrate θ in place where needed, and compute the step.

    Returns the step, and the θ and the losses that it was computed from.
    """
    losses = losses.contiguous()
    tasks = losses.shape[-1]
    rows = losses.numel() // tasks
    dtype = output_dtype(losses)
    objective = torch.empty(losses.shape[:-1], dtype=dtype, device=losses.device)
    out = torch.empty((4, *losses.shape), dtype=dtype, device=losses.device)
    other_device = losses.device.index != torch.cuda.current_device()  # Triton launches on the current device
    with torch.cuda.device(losses.device) if other_device else nullcontext():
        _bpgs_kernel[(rows,)](
            losses,
            theta,
            calibrated,
            objective,
            out,
            rows,
            tau=radius(tasks, margin),
            theta_gain=theta_gain,
            eps_log=eps_log,
            eps_std=eps_std,
            largest=torch.finfo(dtype).max,
            edge=CALIBRATION_EDGE,
            exponent_limit=EXPONENT_LIMIT,
            tasks=tasks,
            block=triton.next_power_of_2(tasks),
            calibrate=calibrate,
            num_warps=1,
        )
    weights, gradient, used_theta, used_losses = out.unbind()
    return Step(objective, weights, gradient), (used_theta, used_losses)
