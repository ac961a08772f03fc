"""UPGrad: the mean of the task gradients, each projected on the dual cone."""

import torch
from torch import Tensor

from ._complementarity import complementarity
from ._gram import (
    NormalisedGram,
    Solution,
    cast_weights,
    expand_preference,
    make_solution,
    mean_weights,
    normalise_gram,
    preference_shares,
    without_autograd,
)
from ._replay import replay_on_cuda


def upgrad(gram: Tensor, *, preference: Tensor | None = None) -> Solution:
    """Project each gradient on {d : ⟨g_j, d⟩ ≥ 0 for all j} and average the projections.

    The projection of g_i is d_i = g_i + Σ x_j g_j with x_j ≥ 0, ⟨g_j, d_i⟩ ≥ 0 and one of the two zero for each j: a
    complementarity problem. The solver is exact: see `docs/numerics.md`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). The
            projections are averaged with the weights p_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Solution: The weights, shape (…, T), which are not negative.

        `solved` is False only if `gram` is not positive semi-definite: if its cosines have an eigenvalue below about
        −1e-4 for float32 or −1e-11 for float64 input, which rounding does not explain, or on a device, for more than
        ten tasks, below −1e-6 or −1e-13. The weights are then finite and not negative. The residual is the largest
        violation over all projections: a negative product ⟨g_j, d_i⟩ / (‖g_j‖‖g_i‖), or the product of x_j with it.

    Example:
        >>> upgrad(torch.tensor([[1.0, -0.5], [-0.5, 1.0]])).weights
        tensor([0.7500, 0.7500])

    References:
        Quinton and Rey, Jacobian Descent for Multi-Objective Optimization. https://arxiv.org/abs/2406.16232
    """
    weights, parts, x, unsolved = _solve(gram, preference)
    cosines = parts.cosines_without_ridge
    products = torch.baddbmm(cosines, cosines, x)
    residual = (-products).clamp_min(0.0).maximum((x * products).abs()).amax((-1, -2))
    return make_solution(gram, weights, residual, ~unsolved.any(-1))


@replay_on_cuda
def upgrad_weights(gram: Tensor, *, preference: Tensor | None = None) -> Tensor:
    """Return the weights of :func:`upgrad` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). The
            projections are averaged with the weights p_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> upgrad_weights(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor([0.7500, 0.7500])

    References:
        Quinton and Rey, Jacobian Descent for Multi-Objective Optimization. https://arxiv.org/abs/2406.16232
    """
    return cast_weights(gram, _solve(gram, preference)[0])


@without_autograd
def _solve(gram: Tensor, preference: Tensor | None) -> tuple[Tensor, NormalisedGram, Tensor, Tensor]:
    parts = normalise_gram(gram)
    x, unsolved = complementarity(parts.cosines, parts.cosines, rounding=parts.rounding)
    # Column i of x is in units of ‖g_i‖ / ‖g_j‖.
    if preference is not None:
        share = preference_shares(parts, expand_preference(gram, preference))
        return torch.bmm(x, parts.norms * share) * parts.inverse + share, parts, x, unsolved
    added = torch.bmm(x, parts.norms) * parts.inverse
    if parts.present is None:
        return (added + 1) / parts.norms.shape[-2], parts, x, unsolved
    mean = mean_weights(parts)
    return (added + 1) * mean, parts, x, unsolved
