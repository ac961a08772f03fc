"""MoDo: a stochastic projected gradient step of weights on the simplex, with two independent batches."""

import math
from operator import mul

import torch
from torch import Tensor

from ._gram import can_sync, without_autograd
from ._masking import output_dtype, working_dtype
from ._small_matrices import project_on_simplex as project_small
from ._small_matrices import read_matrix, read_vector
from .sdmgrad import project_on_simplex

SMALLEST_REST = 1e-12  # sum of λ over the present tasks below which they start from equal weights


def modo_weights(lam: Tensor, gram_12: Tensor, *, gamma: float = 1e-3, rho: float = 0.1) -> tuple[Tensor, Tensor]:
    """Take the step λ ← Π(λ − γ(J₁J₂ᵀλ + ρλ)), with Π the projection on the simplex.

    J₁ and J₂ hold the task gradients of two independent batches, which makes J₁J₂ᵀλ an unbiased estimate of the
    gradient of ½‖Jᵀλ‖². The parameters are then updated with the weights λ on either batch, their mean, or a third.

    Tasks that are absent from either batch keep their λ, and the others share the rest: they take the step with λ
    divided by its sum over the present tasks.

    Args:
        lam (Tensor): Current weights λ on the simplex, shape (…, T).
        gram_12 (Tensor): Products J₁J₂ᵀ of the task gradients of both batches, shape (…, T, T).
        gamma (float, optional): Step size γ, positive. It is in units of one over a squared gradient norm.
            Default: 1e-3.
        rho (float, optional): ℓ2 regularisation ρ, not negative. Default: 0.1.

    Returns:
        tuple[Tensor, Tensor]: The weights, which sum to 1 over the present tasks, and the new λ, both of shape (…, T).
        Without absent tasks they are equal.

    Example:
        >>> weights, lam = modo_weights(torch.tensor([0.5, 0.5]), torch.tensor([[1.0, 0.0], [0.0, 4.0]]), gamma=0.1)
        >>> weights
        tensor([0.5750, 0.4250])

    References:
        Chen et al., Three-Way Trade-Off in Multi-Objective Learning: Optimization, Generalization and
        Conflict-Avoidance. https://arxiv.org/abs/2305.20057
    """
    if gamma <= 0 or rho < 0:
        raise ValueError(f"gamma must be positive and rho not negative, got gamma={gamma} and rho={rho}")
    if gram_12.dim() < 2 or gram_12.shape[-1] != gram_12.shape[-2]:
        raise ValueError(f"gram_12 has shape (…, T, T), got {tuple(gram_12.shape)}")
    single = _step_small(lam, gram_12, gamma, rho)
    if single is not None:
        return torch.tensor(single, dtype=output_dtype(gram_12)), torch.tensor(single, dtype=lam.dtype)
    weights, new = _step(lam, gram_12, gamma, rho)
    # Inference tensors cannot be saved for a backward pass; the casts copy them.
    return weights.to(output_dtype(gram_12), copy=True), new.to(lam.dtype, copy=True)


def _step_small(lam: Tensor, gram_12: Tensor, gamma: float, rho: float) -> list[float] | None:
    """Return the weights for a single small matrix without absent tasks."""
    rows = read_matrix(gram_12)
    start = None if rows is None else read_vector(lam, len(rows))
    if rows is None or start is None:
        return None
    slopes = (sum(map(mul, row, start)) + rho * x for row, x in zip(rows, start, strict=True))
    target = [x - gamma * slope for x, slope in zip(start, slopes, strict=True)]
    return project_small(target) if math.isfinite(sum(map(abs, target))) else None


@without_autograd
def _step(lam: Tensor, gram_12: Tensor, gamma: float, rho: float) -> tuple[Tensor, Tensor]:
    dtype = working_dtype(gram_12.device)
    matrix, lam = gram_12.to(dtype), lam.to(dtype).expand(gram_12.shape[:-1])
    present = matrix.diagonal(dim1=-2, dim2=-1).isfinite()
    if can_sync(matrix) and bool(present.all()):
        x = _descend(lam, matrix, gamma, rho)
        weights = project_on_simplex(x, present)
        return weights, weights
    matrix = torch.where(present.unsqueeze(-1) & present.unsqueeze(-2), matrix, 0.0)
    rest = 1 - torch.where(present, 0.0, lam).sum(-1, keepdim=True)
    count = present.sum(-1, keepdim=True).clamp_min(1)
    start = torch.where(rest > SMALLEST_REST, lam / rest, 1 / count)
    weights = project_on_simplex(_descend(start * present, matrix, gamma, rho), present)
    return weights, torch.where(present, rest.clamp_min(0.0) * weights, lam)


def _descend(lam: Tensor, matrix: Tensor, gamma: float, rho: float) -> Tensor:
    slopes = torch.matmul(matrix, lam.unsqueeze(-1)).squeeze(-1)
    limit = torch.finfo(lam.dtype).max / 4  # the projection adds two of these
    return (lam * (1 - gamma * rho) - gamma * slopes).nan_to_num(0.0).clamp(-limit, limit)
