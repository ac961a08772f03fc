"""DualProj: the mean gradient, projected on the dual cone."""

from operator import mul

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._complementarity import complementarity
from ._gram import (
    NormalisedGram,
    Solution,
    cast_weights,
    expand_preference,
    make_solution,
    mean_weights,
    normalise_gram,
    rounding_ridge,
    without_autograd,
)
from ._masking import output_dtype
from ._replay import replay_on_cuda
from ._small_matrices import LEAST_PIVOT_RIDGES, normalise_small, solve_complementarity


def dualproj(gram: Tensor, *, preference: Tensor | None = None) -> Solution:
    """Project the mean gradient on {d : ⟨g_j, d⟩ ≥ 0 for all j}.

    The projection of the mean g₀ is d = g₀ + Σ x_j g_j with x_j ≥ 0, ⟨g_j, d⟩ ≥ 0 and one of the two zero for each j: a
    complementarity problem. The solver is exact: see `docs/numerics.md`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). g₀ is
            then Σ p_i g_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Solution: The weights, shape (…, T), which are not negative.

        `solved` is False only if `gram` is not positive semi-definite: if its cosines have an eigenvalue below about
        −1e-4 for float32 or −1e-11 for float64 input, which rounding does not explain, or on a device, for more than
        ten tasks, below −1e-6 or −1e-13. The weights are then finite and not negative. The residual is the largest
        violation for gradients of unit length, relative to the largest term p_i g_i / Σp of the mean: a negative
        product ⟨g_j, d⟩, or the product of x_j with it.

    Example:
        >>> dualproj(torch.tensor([[1.0, -1.0], [-1.0, 4.0]])).weights
        tensor([0.5000, 0.5000])
        >>> dualproj(torch.tensor([[1.0, -1.0], [-1.0, 4.0]]), preference=torch.tensor([1.0, 3.0])).weights
        tensor([0.7500, 0.7500])

    References:
        Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning. https://arxiv.org/abs/1706.08840
    """
    weights, parts, x, offset, unsolved = _solve(gram, preference)
    products = torch.baddbmm(offset, parts.cosines_without_ridge, x)
    residual = (-products).clamp_min(0.0).maximum((x * products).abs()).amax(-2)
    return make_solution(gram, weights, residual, ~unsolved)


@replay_on_cuda
def dualproj_weights(gram: Tensor, *, preference: Tensor | None = None) -> Tensor:
    """Return the weights of :func:`dualproj` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). The mean
            gradient is then Σ p_i g_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> dualproj_weights(torch.tensor([[1.0, -1.0], [-1.0, 4.0]]), preference=torch.tensor([1.0, 3.0]))
        tensor([0.7500, 0.7500])

    References:
        Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning. https://arxiv.org/abs/1706.08840
    """
    single = _solve_small(gram, preference)
    if single is not None:
        return torch.tensor(single, dtype=output_dtype(gram))
    return cast_weights(gram, _solve(gram, preference)[0])


def _solve_small(gram: Tensor, preference: Tensor | None) -> list[float] | None:
    """Return the weights for a single small matrix, if the gradients of the active constraints are independent."""
    parts = normalise_small(gram)
    if parts is None or preference is not None:
        return None
    (cosines, norms), ridge = parts, rounding_ridge(gram)
    share, largest = 1 / len(norms), max(norms) / len(norms)
    mean = [n * share / largest for n in norms]
    for j, row in enumerate(cosines):
        row[j] = 1.0 + ridge
    offset = [sum(map(mul, row, mean)) for row in cosines]
    x = solve_complementarity(cosines, offset, LEAST_PIVOT_RIDGES * ridge)
    return None if x is None else [share + largest * xi / n for xi, n in zip(x, norms, strict=True)]


@without_autograd
def _solve(gram: Tensor, preference: Tensor | None) -> tuple[Tensor, NormalisedGram, Tensor, Tensor, Tensor]:
    """Return the weights, the normalised matrix, x, the products of the mean with the gradients, and what failed."""
    parts = normalise_gram(gram)
    share = mean_weights(parts, None if preference is None else expand_preference(gram, preference))
    mean = parts.norms * share  # coefficients on the unit gradients
    scale = mean.amax(-2, keepdim=True).clamp_min(tolerances.TINY)
    mean = mean / scale
    x, unsolved = complementarity(parts.cosines, torch.bmm(parts.cosines, mean), rounding=parts.rounding)
    offset = torch.bmm(parts.cosines_without_ridge, mean)
    return x * (scale * parts.inverse) + share, parts, x, offset, unsolved
