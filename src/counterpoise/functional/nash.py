"""Nash-MTL and FairGrad: damped Newton iterations on a strictly convex problem."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from . import _scalar_fast_path
from . import _tolerances as tolerances
from ._gram import (
    NormalisedGram,
    Solution,
    all_converged,
    can_sync,
    cast_weights,
    expand_preference,
    identity,
    iteration_limit,
    make_solution,
    normalise_gram,
    preference_shares,
    without_autograd,
)
from ._linear_systems import solve
from ._masking import output_dtype
from ._replay import replay_on_cuda
from .mgda import min_norm_weights


def fairgrad(gram: Tensor, *, alpha: float = 1.0, preference: Tensor | None = None) -> Solution:
    """Solve Gw = w^{−1/α}, w > 0: the stationary point of ½wᵀGw − Σφ(w_i) with φ'(w) = w^{−1/α}.

    With a preference p, the equation is (Gw)_i = (p_i / w_i)^{1/α}: weighted α-fairness.

    No solution exists if some a ≥ 0, a ≠ 0 has Ga = 0 (opposite gradients, Pareto stationarity). The weights are then
    those of :func:`mgda`. This fallback also applies

    - if G is closer to that case than its precision resolves: for two gradients, a cosine below −1 + 5e-7 in float32 or
      −1 + 2e-12 in float64;
    - if Newton's method did not converge: where it runs fewer rounds (on CUDA for more than 16 tasks or with a
      preference, and in compiled graphs), for three or more tasks within about 1e-4 of that case, and for α ≠ 1 with
      about a hundred tasks;
    - for α ≠ 1, if norms differ by more than about ten orders of magnitude, and for α of 5 and more, already by four to
      six orders;
    - for small α, if tasks conflict and w^{−1/α} underflows.

    The algorithm is described in `docs/numerics.md`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        alpha (float, optional): Fairness. 1 is proportional fairness (Nash-MTL); larger values approach max-min
            fairness. Default: 1.0.
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). It is
            divided by its mean over the present tasks. A task with p_i = 0 is treated as absent. Default: None, equal
            importance.

    Returns:
        Solution: The weights, shape (…, T). A zero gradient gets weight 0.

        `solved` is False where the weights are the fallback. The residual is the largest
        `|(w_i/p_i)^{1/α} (Gw)_i − 1|`, with p = 1 without preference. Where the terms of (Gw)_i cancel, rounding alone
        leaves 1e-16 times their ratio to the sum, which is large for a task that conflicts with more important ones.

    Example:
        >>> fairgrad(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), alpha=1.0).weights
        tensor([1.0000, 0.5000])
        >>> fairgrad(torch.eye(2), alpha=2.0, preference=torch.tensor([3.0, 1.0])).weights  # (p_i / mean)^{1/3}
        tensor([1.1447, 0.7937])

    References:
        Ban and Ji, Fair Resource Allocation in Multi-Task Learning. https://arxiv.org/abs/2402.15638
    """
    power = _power(alpha)
    weights, parts, p, solved = _solve(gram, power, preference)
    x = torch.where(parts.inverse > 0, weights * parts.norms, 1.0)
    target = _target(x, _inverse_or_one(parts), power, p)
    # A weight of 0 gives 0/0, which counts as a residual of 1.
    residual = (x * torch.bmm(parts.cosines, x) / target - 1).abs().nan_to_num(1.0).amax(-2)
    return make_solution(gram, weights, residual, solved)


def nash(gram: Tensor, *, preference: Tensor | None = None) -> Solution:
    """Solve w_i (Gw)_i = 1, w > 0: the Nash bargaining solution.

    This is :func:`fairgrad` with α = 1, including its fallback. The direction is invariant to the scale of each task.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Bargaining powers p of the tasks, not negative, shape broadcastable to (…, T).
            They are divided by their mean over the present tasks. A task with p_i = 0 is treated as absent. Default:
            None, equal powers.

    Returns:
        Solution: The weights, shape (…, T). `solved` is False where no solution exists and the weights are those of
        :func:`mgda`. The residual is the largest `|w_i (Gw)_i / p_i − 1|`, with p = 1 without preference.

    Example:
        >>> nash(torch.tensor([[1.0, 0.0], [0.0, 4.0]])).weights
        tensor([1.0000, 0.5000])

    References:
        Navon et al., Multi-Task Learning as a Bargaining Game. https://arxiv.org/abs/2202.01017
    """
    return fairgrad(gram, preference=preference)


@replay_on_cuda
def nash_weights(gram: Tensor, *, preference: Tensor | None = None) -> Tensor:
    """Return the weights of :func:`nash` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Bargaining powers p of the tasks, not negative, shape broadcastable to (…, T).
            They are divided by their mean over the present tasks. A task with p_i = 0 is treated as absent. Default:
            None, equal powers.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> nash_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        tensor([1.0000, 0.5000])

    References:
        Navon et al., Multi-Task Learning as a Bargaining Game. https://arxiv.org/abs/2202.01017
    """
    single = _scalar_fast_path.nash_weights(gram) if preference is None else None
    if single is None:
        return fairgrad_weights(gram, preference=preference)
    return torch.tensor(single, dtype=output_dtype(gram))


@replay_on_cuda
def fairgrad_weights(gram: Tensor, *, alpha: float = 1.0, preference: Tensor | None = None) -> Tensor:
    """Return the weights of :func:`fairgrad` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        alpha (float, optional): Fairness. Default: 1.0.
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). It is
            divided by its mean over the present tasks. A task with p_i = 0 is treated as absent. Default: None, equal
            importance.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> fairgrad_weights(torch.tensor([[1.0, 0.0], [0.0, 16.0]]), alpha=2.0)
        tensor([1.0000, 0.1575])

    References:
        Ban and Ji, Fair Resource Allocation in Multi-Task Learning. https://arxiv.org/abs/2402.15638
    """
    return cast_weights(gram, _solve(gram, _power(alpha), preference)[0])


def _power(alpha: float) -> float:
    """Return the exponent 1/α of the equation."""
    if not 0 < alpha < math.inf:
        raise ValueError(f"fairgrad: alpha is {alpha}, expected a positive number")
    return 1 / alpha


@without_autograd
def _solve(
    gram: Tensor, power: float, preference: Tensor | None
) -> tuple[Tensor, NormalisedGram, Tensor | None, Tensor]:
    """Return the weights, the normalised matrix, p, and where Newton's method found a solution."""
    p = None
    if preference is None:
        parts = normalise_gram(gram, add_ridge=False)
        x, solved = _solve_nash(parts) if power == 1 else _solve_power(parts, power)
    else:
        given = expand_preference(gram, preference)
        gram = gram.clone()  # a task with p_i = 0 becomes absent
        gram.diagonal(dim1=-2, dim2=-1).masked_fill_(given.view(gram.shape[:-1]) == 0, torch.nan)
        parts = normalise_gram(gram, add_ridge=False)
        p = _normalise_preference(parts, given)
        x, solved = _solve_weighted(parts, power, p)
    weights = x * parts.inverse
    if not (can_sync(x) and bool(solved.all())):
        weights = torch.where(solved, weights, min_norm_weights(normalise_gram(gram))[0])
    return weights, parts, p, solved


def _normalise_preference(parts: NormalisedGram, preference: Tensor) -> Tensor:
    """Return p with mean 1 over the present tasks, and 1 for absent and zero gradients."""
    shares = preference_shares(parts, preference)
    return torch.where(parts.inverse > 0, shares * (shares > 0).sum(-2, keepdim=True), 1.0)


def _solve_nash(parts: NormalisedGram) -> tuple[Tensor, Tensor]:
    """Solve x_i (Cx)_i = 1 for x = ‖g‖w; return x and where it is a solution."""
    cosines, newton = parts.cosines, _select_kernel(parts.cosines)
    x = _iterate_nash(cosines) if newton is None else newton(cosines, _inverse_or_one(parts), 1.0)[0]
    # Large cancelling terms distinguish a solution from an iterate that diverges.
    products = torch.bmm(cosines.abs(), x) * x
    error = (x * torch.bmm(cosines, x) - 1).abs()
    solved = (error <= tolerances.NASH_ERROR + tolerances.CANCELLATION * products) & (products <= _largest_term(parts))
    return x, solved.all(-2, keepdim=True)


def _iterate_nash(cosines: Tensor) -> Tensor:
    """Return the last iterate x of Newton's method for x_i (Cx)_i = 1.

    A Newton step in relative coordinates is dx/x = y with (H + 1)y = 1 − H1, H = diag(x) C diag(x), which is the same
    as 1 + y = 2(H + 1)⁻¹1. The problem is self-concordant: steps of length 1/(1 + ‖y‖) converge from any start to where
    full steps do.
    """
    eye = identity(cosines)
    x = _start_nash(cosines)
    halves = torch.full_like(x, 0.5)
    for _ in range(tolerances.NEWTON_ROUNDS if can_sync(cosines) else tolerances.NEWTON_DEVICE_ROUNDS):
        terms = cosines * (x * x.mT)
        z = solve(terms + eye, halves).mul_(2.0)  # 1 + y = 2z
        longest = 2 * torch.dist(z, halves).item() if can_sync(z) else math.inf
        if longest < tolerances.FULL_STEP:
            x = torch.mul(x, z).mul_(2.0)
            if longest < tolerances.NEWTON_CONVERGED:
                break
            continue
        # Far from the solution the Newton system is singular; keep the current iterate.
        y = (2 * z - 1).nan_to_num(0.0, 0.0, 0.0)
        x = _damped_step(x, y, y.norm(dim=-2, keepdim=True))
    return x


def _start_nash(cosines: Tensor) -> Tensor:
    """Return the starting point: two rounds of x ← √(x / Cx), from 1, with bounded sums."""
    x = cosines.sum(-1, keepdim=True).clamp_min(tolerances.START_FLOOR).rsqrt()
    x = x * (x * torch.bmm(cosines, x)).clamp_min(tolerances.START_FLOOR).rsqrt()
    if not can_sync(cosines):
        # A device runs few rounds: start from the solution on the ray through x, which for two tasks is exact.
        curvature = torch.bmm(x.mT, torch.bmm(cosines, x))
        x = x * (x.shape[-2] / curvature.clamp_min(tolerances.CURVATURE_FLOOR)).sqrt()
    return x


def _solve_power(parts: NormalisedGram, power: float) -> tuple[Tensor, Tensor]:
    """Solve x_i (Cx)_i = w_i^{1−p} for x = ‖g‖w in the same way; return x and where it is a solution."""
    cosines, inverse = parts.cosines, _inverse_or_one(parts)
    x, length = (_select_kernel(cosines) or _iterate_power)(cosines, inverse, power)
    sizes = torch.bmm(cosines.abs(), x) * x
    largest = (sizes / (x * inverse) ** (1 - power)).amax(-2, keepdim=True)
    return x, (length < tolerances.NEWTON_CONVERGED) & (largest < _largest_term(parts))


def _iterate_power(cosines: Tensor, inverse: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Return the last iterate x of Newton's method for x_i (Cx)_i = w_i^{1−p}, and the length of its relative step."""
    x = inverse ** ((1 - power) / (1 + power))
    for _ in range(iteration_limit(tolerances.NEWTON_POWER_ROUNDS, cosines)):
        # Along a ray the problem is one-dimensional: move to its solution first.
        curvature = (x * torch.bmm(cosines, x)).sum(-2, keepdim=True)
        ray = (((x * inverse) ** (1 - power)).sum(-2, keepdim=True) / curvature) ** (1 / (1 + power))
        x = torch.where(ray.isfinite(), x * ray, x)
        target = (x * inverse) ** (1 - power)
        terms = cosines * (x * x.mT)
        rest = target - terms.sum(-1, keepdim=True)
        hessian = terms + torch.diag_embed((power * target).squeeze(-1))
        y = solve(hessian, rest).nan_to_num(0.0)
        length = y.norm(dim=-2, keepdim=True)
        x = _clamp_iterate(_damped_step(x, y, length))
        if all_converged(length >= tolerances.NEWTON_CONVERGED):
            break
    return x, length


def _select_kernel(cosines: Tensor) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    """Return Newton's method as one kernel for matrices (B, T, T), or None where it is not available."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    few = cosines.shape[-1] <= tolerances.NEWTON_KERNEL_TASKS
    return _load_cuda_kernel() if cosines.is_cuda and few and not transformed else None


@cache
def _load_cuda_kernel() -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    try:
        from ..kernels.newton_cuda import newton
    except ImportError:  # this build of torch has no Triton
        return None
    return newton


def _solve_weighted(parts: NormalisedGram, power: float, p: Tensor) -> tuple[Tensor, Tensor]:
    """Solve x_i (Cx)_i = w_i^{1−1/α} p_i^{1/α} for x = ‖g‖w and any α; return x and where it is a solution.

    The relative steps y of the tasks differ by orders of magnitude if p does. Only negative ones need damping: the
    objective decreases up to the step length t with (1 − tm)^{−1/α} = 1 + m/α, where m is the largest −y_i.
    """
    cosines, inverse = parts.cosines, _inverse_or_one(parts)
    x = _start_weighted(cosines, inverse ** ((1 - power) / (1 + power)) * p ** (power / (1 + power)), power)
    for _ in range(iteration_limit(tolerances.NEWTON_POWER_ROUNDS, cosines)):
        curvature = (x * torch.bmm(cosines, x)).sum(-2, keepdim=True)
        ray = (_target(x, inverse, power, p).sum(-2, keepdim=True) / curvature) ** (1 / (1 + power))
        x = torch.where(ray.isfinite(), x * ray, x)
        target = _target(x, inverse, power, p)
        terms = cosines * (x * x.mT)
        rest = target - terms.sum(-1, keepdim=True)
        hessian = terms + torch.diag_embed((power * target).squeeze(-1))
        # A unit diagonal keeps the digits of small entries.
        scale = hessian.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).rsqrt()
        y = (solve(hessian * (scale * scale.mT), rest * scale) * scale).nan_to_num(0.0)
        length = y.norm(dim=-2, keepdim=True)
        if all_converged(length >= tolerances.WEIGHTED_CONVERGED):
            break
        lowest = (-y).amax(-2, keepdim=True).clamp_min(tolerances.TINY)
        step = -torch.expm1(-torch.log1p(power * lowest) / power) / lowest
        x = _clamp_iterate(torch.addcmul(x, x, step * y))
    # x is a solution if neither the terms that cancel nor the change of x per relative change of C is too large.
    sizes = terms.abs().sum(-1, keepdim=True)
    changes = torch.bmm(solve(hessian, identity(hessian).expand_as(hessian)).abs(), sizes)
    largest = changes.maximum(sizes / target * (p / p.amax(-2, keepdim=True)) ** power).amax(-2, keepdim=True)
    converged = length <= tolerances.WEIGHTED_CONVERGED + tolerances.CANCELLATION * largest
    return x + x * y, converged & (largest <= _largest_term(parts))


def _start_weighted(cosines: Tensor, x: Tensor, power: float) -> Tensor:
    """Return a starting point from the solution x for orthogonal gradients: each task responds to the others' x."""
    others = torch.bmm(cosines, x) / x - 1
    root = ((others * others + 4).sqrt() + others.abs()) / 2
    return _clamp_iterate(x * torch.where(others < 0, root, root ** (-1 / power)))


def _clamp_iterate(x: Tensor) -> Tensor:
    return x.clamp(1 / tolerances.ITERATE_RANGE, tolerances.ITERATE_RANGE)


def _target(x: Tensor, inverse: Tensor, power: float, p: Tensor | None) -> Tensor:
    """Return w_i^{1−1/α} p_i^{1/α}, the value of x_i (Cx)_i at the solution."""
    weights = x * inverse
    # Powers of the ratio p/w, which is of order 1 for small α, do not overflow.
    return weights ** (1 - power) if p is None else weights * (p / weights) ** power


def _damped_step(x: Tensor, y: Tensor, length: Tensor) -> Tensor:
    """Return x + xy, with the relative step y shortened to y / (1 + length) where its length is large."""
    return torch.addcmul(x, x, torch.where(length > tolerances.FULL_STEP, y / (1 + length), y))


def _largest_term(parts: NormalisedGram) -> float:
    """Return the largest terms that may cancel to 1; beyond it, rounding of the input decides even the sign."""
    return min(tolerances.LARGEST_TERM, tolerances.LARGEST_TERM_RIDGES / parts.ridge)


def _inverse_or_one(parts: NormalisedGram) -> Tensor:
    """Return 1/‖g‖, and 1 for absent and zero gradients."""
    return parts.inverse if parts.present is None else torch.where(parts.inverse > 0, parts.inverse, 1.0)
