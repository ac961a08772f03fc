"""Newton's method of Nash-MTL and FairGrad on CUDA, with all iterations in one kernel.

`counterpoise.functional.nash` has the reference implementation, which launches about fifteen kernels per iteration, and
as many iterations as the hardest matrix may need. Here, each matrix stops when its own iteration has converged.
"""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..functional import _tolerances as tolerances


@triton.jit  # type: ignore[untyped-decorator]
def _solve(matrix, right, i, j, tasks: tl.constexpr):  # type: ignore[no-untyped-def]
    """Solve a positive definite system by Gauss–Jordan elimination without pivoting."""
    for k in range(tasks):
        row = tl.sum(tl.where(i == k, matrix, 0.0), 0)[None, :]
        column = tl.sum(tl.where(j == k, matrix, 0.0), 1)[:, None]
        own = tl.sum(tl.where(i == k, right, 0.0), 0)[None, :]
        pivot = tl.sum(tl.where(j == k, row, 0.0), 1)[:, None]
        factor = tl.where(i == k, column - 1, column) / pivot
        matrix -= factor * row
        right -= factor * own
    return right


@triton.jit  # type: ignore[untyped-decorator]
def _target(x, inverse, inside, power: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return w^{1−1/α}, and 0 for padding."""
    if power == 1:
        return tl.where(inside, x * 0.0 + 1.0, 0.0)
    return tl.where(inside, tl.exp(tl.log(x * inverse) * (1 - power)), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _newton_kernel(  # type: ignore[no-untyped-def]
    cosines,
    inverse,
    solution,
    length,
    power: tl.constexpr,  # constants, because run-time scalars are passed as float32
    rounds: tl.constexpr,
    full_step: tl.constexpr,
    enough: tl.constexpr,
    largest: tl.constexpr,
    tasks: tl.constexpr,
    size: tl.constexpr,
):
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    inside = i < tasks
    c = tl.load(cosines + problem * tasks * tasks + i * tasks + j, inside & (j < tasks), other=0.0)
    scale = tl.load(inverse + problem * tasks + i, inside, other=1.0)
    x = scale * 0.0 + 1.0
    if power != 1:
        x = tl.exp(tl.log(scale) * ((1 - power) / (1 + power)))
    step_length = tl.sum(tl.sum(c * 0.0, 1), 0) + float("inf")
    count = 0
    while (count < rounds) & (step_length >= enough):
        # Along a ray the problem is one-dimensional: move to its solution first.
        across = tl.sum(tl.where(i == j, x, 0.0), 0)[None, :]
        products = tl.sum(c * across, 1)[:, None]
        curvature = tl.sum(tl.sum(x * products, 1), 0)
        ratio = tl.sum(tl.sum(_target(x, scale, inside, power), 1), 0) / curvature
        ray = tl.exp(tl.log(ratio) / (1 + power))
        x = tl.where(ray - ray == 0, x * ray, x)
        across = tl.sum(tl.where(i == j, x, 0.0), 0)[None, :]
        target = _target(x, scale, inside, power)
        terms = c * (x * across)
        rest = target - tl.sum(terms, 1)[:, None]
        y = _solve(terms + tl.where(i == j, power * target, 0.0), rest, i, j, tasks)
        y = tl.where(inside & (y - y == 0), y, 0.0)
        step_length = tl.sqrt(tl.sum(tl.sum(y * y, 1), 0))
        x += x * tl.where(step_length > full_step, y / (1 + step_length), y)
        x = tl.where(x > largest, x * 0.0 + largest, tl.where(x < 1 / largest, x * 0.0 + 1 / largest, x))
        count += 1
    tl.store(solution + problem * tasks + i, x, inside)
    tl.store(length + problem, step_length)


def newton(cosines: Tensor, inverse: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Solve x_i (Cx)_i = w_i^{1−1/α} for x = ‖g‖w.

    Args:
        cosines: the cosines C of the task gradients, (B, T, T), in float64.
        inverse: the reciprocal norms of the gradients, not 0, (B, T, 1).
        power: the exponent 1/α.

    Returns:
        tuple: The last iterates x, (B, T, 1), and the norms of their last relative steps, (B, 1, 1).
    """
    cosines, inverse = cosines.contiguous(), inverse.contiguous()
    solution, length = torch.empty_like(inverse), inverse.new_empty(len(inverse), 1, 1)
    tasks = cosines.shape[-1]
    other_device = cosines.device.index != torch.cuda.current_device()  # Triton launches on the current device
    with torch.cuda.device(cosines.device) if other_device else nullcontext():
        _newton_kernel[(len(cosines),)](
            cosines,
            inverse,
            solution,
            length,
            power=float(power),
            rounds=tolerances.NEWTON_POWER_ROUNDS,
            full_step=tolerances.FULL_STEP,
            enough=tolerances.NEWTON_CONVERGED,
            largest=tolerances.ITERATE_RANGE,
            tasks=tasks,
            size=max(triton.next_power_of_2(tasks), 2),
            num_warps=1,
        )
    return solution, length
