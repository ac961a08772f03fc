"""DCGD: a direction in the dual cone of the residual gradient and the sum of the others."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ._gram import cast_weights, normalise_gram, without_autograd
from .config import bisector_weights

DCGDKind = Literal["center", "projection", "average"]


def dcgd_weights(gram: Tensor, residual: int, *, kind: DCGDKind = "center") -> Tensor:
    """Compute a direction that conflicts neither with the residual gradient r nor with the sum b of the others.

    With g = r + b:

    - `"center"`: the projection of g on the bisector r/‖r‖ + b/‖b‖, which is (‖r‖ + ‖b‖)/2 times the bisector.
    - `"projection"`: g where ⟨g, r⟩ ≥ 0 and ⟨g, b⟩ ≥ 0; otherwise its projection orthogonal to the group with the
      negative product.
    - `"average"`: g in the same case; otherwise the mean of its projections orthogonal to r and to b.

    These are the variants of the authors' code, `dcgd.py` in github.com/youngsikhwang/Dual-Cone-Gradient-Descent,
    without the constant that it adds to the norms. If r or b is zero or absent, the direction is the other group's
    gradient. If they are opposite, `"center"` and `"projection"` give zero.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        residual (int): Index of the residual loss of the differential equation.
        kind (str, optional): `"center"`, `"projection"` or `"average"`. Default: `"center"`.

    Returns:
        Tensor: The weights, shape (…, T). All tasks but `residual` have the same weight. They are not negative.

    Example:
        >>> dcgd_weights(torch.tensor([[1.0, 0.0], [0.0, 9.0]]), 0)
        tensor([2.0000, 0.6667])

    References:
        Hwang and Lim, Dual Cone Gradient Descent for Training Physics-Informed Neural Networks.
        https://arxiv.org/abs/2409.18426
    """
    if kind not in get_args(DCGDKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(DCGDKind))}, got {kind!r}")
    if not -gram.shape[-1] <= residual < gram.shape[-1]:
        raise ValueError(f"residual must be the index of one of {gram.shape[-1]} tasks, got {residual}")
    return cast_weights(gram, _solve(gram, residual, kind))


@without_autograd
def _solve(gram: Tensor, residual: int, kind: DCGDKind) -> Tensor:
    parts = normalise_gram(gram, add_ridge=False)
    groups = torch.ones(gram.shape[-1], 2, dtype=parts.norms.dtype, device=gram.device)
    groups[:, 0] = 0.0
    groups[residual] = 1 - groups[residual]  # assigning a number to a single entry would synchronise
    # Divide by the largest norm, so that the products of the groups do not overflow.
    norms = parts.norms if parts.present is None else parts.norms / parts.norms.amax(-2, keepdim=True)
    members = (groups * norms).nan_to_num(0.0)
    products = torch.bmm(members.mT, torch.bmm(parts.cosines, members))
    rounding = parts.ridge * members.sum(-2).square()
    squares = products.diagonal(dim1=-2, dim2=-1)
    # A sum that cancels up to rounding is zero.
    zero = (squares <= rounding).unsqueeze(-1)
    products = torch.where(zero | zero.mT, 0.0, products)
    weights = torch.matmul(groups, _group_weights(products, kind))
    return weights if parts.present is None else weights * parts.present


def _group_weights(products: Tensor, kind: DCGDKind) -> Tensor:
    """Return the weights of the two groups, (B, 2, 1), from their Gram matrix."""
    if kind == "center":
        return bisector_weights(normalise_gram(products))
    squares = products.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    cross = products[:, :1, 1:]
    conflicts = squares + cross < 0
    quotients = -cross / squares
    if kind == "projection":
        return torch.where(conflicts, quotients, 1.0)
    return torch.where(conflicts.any(-2, keepdim=True), (1 + quotients) / 2, 1.0)
