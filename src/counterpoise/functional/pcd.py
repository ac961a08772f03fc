"""PCD: the direction nearest to a primary gradient that guarantees progress to every other task."""

import math
from operator import mul

import torch
from torch import Tensor

from ._complementarity import complementarity
from ._gram import NormalisedGram, cast_weights, mean_weights, normalise_gram, rounding_ridge, without_autograd
from ._masking import output_dtype, working_dtype
from ._outliers import limit_outliers
from ._small_matrices import LEAST_PIVOT_RIDGES, normalise_small, read_vector, solve_complementarity

INFEASIBLE = 1e-2  # violation of a constraint, relative to the largest one at the primary gradient, that has no cure


def pcd_squared_norms(gram: Tensor, mean: Tensor, steps: Tensor, *, beta: float = 0.999) -> tuple[Tensor, Tensor]:
    """Update the running means of the squared gradient norms that :func:`pcd_weights` needs.

    The bias-corrected exponential moving average follows v ← v + (1 − β)/(1 − β^n)(‖g‖² − v) in step n, so that the
    first step sets it to ‖g‖².

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T). Only the diagonal is used.
        mean (Tensor): Running means v, shape (…, T). Their value has no effect where `steps` is 0.
        steps (Tensor): Number of steps in which each task was present, shape (…, T).
        beta (float, optional): Decay of the average, in [0, 1). Default: 0.999.

    Returns:
        tuple[Tensor, Tensor]: The new means and numbers of steps, in the dtypes given. Absent tasks keep theirs. A
        ‖g‖² above 1e6 v is limited, such that v grows by a factor of 11 at most.

    Example:
        >>> mean, steps = pcd_squared_norms(4 * torch.eye(2), torch.zeros(2), torch.zeros(2, dtype=torch.long))
        >>> mean, steps
        (tensor([4., 4.]), tensor([1, 1]))

    References:
        Varam and AlHajri, Not All Objectives Are Born Equal: Priority-Constrained Descent for Hierarchical
        Multi-Objective Optimization. https://arxiv.org/abs/2606.29521
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    squares = gram.detach().diagonal(dim1=-2, dim2=-1).to(working_dtype(gram.device))
    present, started = squares.isfinite(), steps > 0
    steps = steps + present.to(steps.dtype)
    rate = (1 - beta) / (1 - beta ** steps.to(squares.dtype)).clamp_min(1 - beta)
    old = mean.to(squares.dtype)
    squares = torch.where(started, limit_outliers(squares, old, rate), squares)
    return torch.where(present, old + rate * (squares - old), old).to(mean.dtype), steps


def pcd_weights(
    gram: Tensor, squared_norms: Tensor, *, tau: float | Tensor = 0.02, primary: int = 0, eps: float = 1e-8
) -> Tensor:
    """Minimise ½‖d − g̃₁‖² subject to ⟨g̃_j, d⟩ ≥ τ_j‖g̃_j‖² for every task j but the primary one.

    g̃_i = g_i / √(v_i + ε) is the gradient divided by its running norm, and g₁ that of the primary task. The direction
    is d rescaled to the length of g₁. Its weights solve a complementarity problem: see `docs/numerics.md`.

    Special cases, as in TorchJD:

    - If g₁ is zero, so is the direction.
    - If no d satisfies all constraints, or none at the precision of `gram`, the direction is g₁. This takes two or more
      tasks besides the primary one, for example opposite gradients.
    - If d is zero, so is the direction.

    If the primary task is absent, the direction is the mean of the gradients that are present.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        squared_norms (Tensor): Running means v of the squared gradient norms, shape (…, T): see
            :func:`pcd_squared_norms`.
        tau (float or Tensor, optional): Guaranteed fraction τ of the progress along each task's own gradient, in
            [0, 1]; a tensor broadcasts to (…, T). Default: 0.02.
        primary (int, optional): Index of the primary task. Default: 0.
        eps (float, optional): Constant ε added to the running means. Default: 1e-8.

    Returns:
        Tensor: The weights, shape (…, T), which are not negative. A zero gradient gets weight 0.

    Example:
        >>> pcd_weights(torch.tensor([[1.0, -0.6], [-0.6, 1.0]]), torch.ones(2), tau=0.0)
        tensor([1.2500, 0.7500])

    References:
        Varam and AlHajri, Not All Objectives Are Born Equal: Priority-Constrained Descent for Hierarchical
        Multi-Objective Optimization. https://arxiv.org/abs/2606.29521
    """
    if not isinstance(tau, Tensor) and not 0 <= tau <= 1:
        raise ValueError(f"tau must be in [0, 1], got {tau}")
    if not -gram.shape[-1] <= primary < gram.shape[-1]:
        raise ValueError(f"primary must be the index of one of {gram.shape[-1]} tasks, got {primary}")
    primary %= gram.shape[-1]
    single = None if isinstance(tau, Tensor) else _solve_small(gram, squared_norms, tau, primary, eps)
    if single is not None:
        return torch.tensor(single, dtype=output_dtype(gram))
    return cast_weights(gram, _solve(gram, squared_norms, tau, primary, eps))


def _solve_small(gram: Tensor, squared_norms: Tensor, tau: float, primary: int, eps: float) -> list[float] | None:
    """Return the weights for a single small matrix, if the gradients of the active constraints are independent."""
    parts = normalise_small(gram)
    means = None if parts is None else read_vector(squared_norms, len(parts[1]))
    if parts is None or means is None:
        return None
    (cosines, norms), ridge = parts, rounding_ridge(gram)
    lengths = [n / math.sqrt(mean + eps) for n, mean in zip(norms, means, strict=True)]
    # See `_solve`. An offset that is not negative leaves the primary task out.
    offset = [lengths[primary] * row[primary] - tau * n for row, n in zip(cosines, lengths, strict=True)]
    offset[primary] = 0.0
    matrix = [row.copy() for row in cosines]
    for j in range(len(norms)):
        matrix[j][primary] = matrix[primary][j] = 0.0
    x = solve_complementarity(matrix, offset, LEAST_PIVOT_RIDGES * ridge)
    if x is None:
        return None
    x[primary] = lengths[primary]
    squared_length = sum(xi * sum(map(mul, row, x)) for row, xi in zip(cosines, x, strict=True))
    total = sum(x)
    if not squared_length > ridge * total * total:  # total**2 would raise an error if it overflows
        return None
    factor = norms[primary] / math.sqrt(squared_length)
    return [factor * xi / n for xi, n in zip(x, norms, strict=True)]


@without_autograd
def _solve(gram: Tensor, squared_norms: Tensor, tau: float | Tensor, primary: int, eps: float) -> Tensor:
    parts = normalise_gram(gram)
    norms, shape = parts.norms, gram.shape[:-1]
    means = squared_norms.detach().to(norms).expand(shape).reshape(norms.shape)
    lengths = norms * (means + eps).rsqrt()  # ‖g̃‖
    if isinstance(tau, Tensor):
        tau = tau.detach().to(norms).expand(shape).reshape(norms.shape)
    if parts.present is not None:
        lengths = torch.where(parts.inverse > 0, lengths, 0.0).nan_to_num(0.0, 0.0)
    first = lengths[:, primary].unsqueeze(-1).clone()
    # y_j = ⟨g_j, d⟩/‖g_j‖ − τ_j‖g̃_j‖ ≥ 0 with d = g̃₁ + Σ x_j g_j/‖g_j‖, x ≥ 0. The primary task has no constraint.
    offset = first * parts.cosines[:, :, primary].unsqueeze(-1) - tau * lengths
    offset[:, primary] = 0.0
    matrix = parts.cosines.clone()
    matrix[:, primary], matrix[:, :, primary] = 0.0, 0.0
    matrix[:, primary, primary] = 1.0
    x, unsolved = complementarity(matrix, offset)
    values = torch.baddbmm(offset, matrix, x) - parts.ridge * x
    infeasible = (values < -INFEASIBLE * offset.abs().amax(-2, keepdim=True)).any(-2, keepdim=True)
    coefficients = torch.where(infeasible | unsolved.unsqueeze(-1), 0.0, x)
    coefficients[:, primary] = first.squeeze(-1)
    return _rescale(parts, coefficients, primary)


def _rescale(parts: NormalisedGram, coefficients: Tensor, primary: int) -> Tensor:
    """Return the weights of Σ c_i g_i/‖g_i‖, rescaled to the length of the primary gradient."""
    squared_length = (coefficients * torch.bmm(parts.cosines_without_ridge, coefficients)).sum(-2, keepdim=True)
    size = coefficients.sum(-2, keepdim=True)
    weights = coefficients * parts.inverse * (parts.norms[:, primary : primary + 1] * squared_length.rsqrt())
    weights = torch.where(squared_length > parts.ridge * size * size, weights, 0.0)
    if parts.present is None:
        return weights
    return torch.where(parts.present[:, primary : primary + 1], weights, mean_weights(parts))
