"""Steps of weights that live on the simplex."""

import torch
from torch import Tensor

from ._gram import rounded, unit


def project_on_simplex(x: Tensor, present: Tensor) -> Tensor:
    """The nearest point of the simplex over the present tasks (Duchi et al. 2008)."""
    lowest = torch.finfo(x.dtype).min
    ordered = torch.where(present, x, lowest).sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shifts = (torch.where(ordered > lowest, ordered, 0.0).cumsum(-1) - 1) / count
    last = ((ordered > shifts) & (ordered > lowest)).sum(-1, keepdim=True).clamp_min(1) - 1
    return torch.where(present, (x - shifts.gather(-1, last)).clamp_min(0.0), 0.0)


def sdmgrad_weights(
    gram: Tensor, w: Tensor, *, lam: float = 0.3, lr: float = 10.0, momentum: float = 0.5, iterations: int = 20
) -> tuple[Tensor, Tensor]:
    """Projected momentum steps from `w` on ½‖g_w + λg₀‖² over the simplex; weights (w + λ/T)/(1 + λ); new w.

    The Gram matrix is measured in units of its mean gradient norm, so that `lr` means the same whatever their size.
    Twenty steps with `lr` from 0.3 to 1 come to the minimum; the default of 10 is too long for that, and w leaps
    between corners of the simplex.
    """
    parts = unit(gram, regular=False)
    present = torch.ones_like(parts.norms, dtype=torch.bool) if parts.present is None else parts.present
    present = present.squeeze(-1)
    count = present.sum(-1, keepdim=True).clamp_min(1)
    norms = parts.norms / (parts.norms.sum(-2, keepdim=True) / count.unsqueeze(-1)).clamp_min(1e-300)
    matrix = parts.cosines * norms * norms.mT
    mean = present.to(matrix.dtype) / count
    x = project_on_simplex(w.detach().to(matrix.dtype).reshape(mean.shape), present)
    velocity = torch.zeros_like(x)
    for _ in range(iterations):
        velocity = momentum * velocity + torch.bmm(matrix, (x + lam * mean).unsqueeze(-1)).squeeze(-1)
        x = project_on_simplex(x - lr * velocity, present)
    return rounded(gram, (x + lam * mean) / (1 + lam)), x.to(w.dtype).reshape(w.shape)
