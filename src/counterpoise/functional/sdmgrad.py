"""SDMGrad: projected gradient steps of weights on the simplex."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import cast_weights, normalise_gram


def project_on_simplex(x: Tensor, present: Tensor) -> Tensor:
    """Return the nearest point of the simplex over the present tasks.

    Args:
        x (Tensor): Points, shape (…, T).
        present (Tensor): Boolean mask of the tasks that may get weight, shape (…, T).

    Returns:
        Tensor: Shape (…, T), non-negative, with sum 1 over the present tasks and 0 for the others.

    Example:
        >>> project_on_simplex(torch.tensor([2.0, 1.5, 0.0]), torch.tensor([True, True, True]))
        tensor([0.7500, 0.2500, 0.0000])

    References:
        Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions.
        https://doi.org/10.1145/1390156.1390191
    """
    lowest = torch.finfo(x.dtype).min
    ordered = torch.where(present, x, lowest).sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shifts = (torch.where(ordered > lowest, ordered, 0.0).cumsum(-1) - 1) / count
    last = ((ordered > shifts) & (ordered > lowest)).sum(-1, keepdim=True).clamp_min(1) - 1
    return torch.where(present, (x - shifts.gather(-1, last)).clamp_min(0.0), 0.0)


@torch.no_grad()
def sdmgrad_weights(
    gram: Tensor, w: Tensor, *, lam: float = 0.3, lr: float = 10.0, momentum: float = 0.5, iterations: int = 20
) -> tuple[Tensor, Tensor]:
    """Minimise ½‖g_w + λg₀‖² over the simplex by projected momentum steps from `w`.

    The Gram matrix is divided by the square of the mean gradient norm, so that `lr` does not depend on the scale of the
    gradients. With `lr` between 0.3 and 1, twenty steps converge; with the default of 10, w jumps between corners of
    the simplex.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        w (Tensor): Starting point, shape (…, T).
        lam (float, optional): Weight λ of the mean gradient g₀. Default: 0.3.
        lr (float, optional): Step size. Default: 10.0.
        momentum (float, optional): Momentum of the steps. Default: 0.5.
        iterations (int, optional): Number of steps. Default: 20.

    Returns:
        tuple[Tensor, Tensor]: The weights (w + λ/T)/(1 + λ) and the new w, both of shape (…, T).

    Example:
        >>> weights, w = sdmgrad_weights(torch.eye(2), torch.tensor([0.5, 0.5]))
        >>> weights
        tensor([0.5000, 0.5000])

    References:
        Xiao et al., Direction-oriented Multi-objective Learning: Simple and Provable Stochastic Algorithms.
        https://arxiv.org/abs/2305.18409
    """
    parts = normalise_gram(gram, add_ridge=False)
    present = torch.ones_like(parts.norms, dtype=torch.bool) if parts.present is None else parts.present
    present = present.squeeze(-1)
    count = present.sum(-1, keepdim=True).clamp_min(1)
    norms = parts.norms / (parts.norms.sum(-2, keepdim=True) / count.unsqueeze(-1)).clamp_min(tolerances.TINY)
    matrix = parts.cosines * norms * norms.mT
    mean = present.to(matrix.dtype) / count
    x = project_on_simplex(w.detach().to(matrix.dtype).reshape(mean.shape), present)
    velocity = torch.zeros_like(x)
    for _ in range(iterations):
        velocity = momentum * velocity + torch.bmm(matrix, (x + lam * mean).unsqueeze(-1)).squeeze(-1)
        x = project_on_simplex(x - lr * velocity, present)
    return cast_weights(gram, (x + lam * mean) / (1 + lam)), x.to(w.dtype).reshape(w.shape)
