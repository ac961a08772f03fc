"""GradNorm and its proxy: weights from gradient norms."""

import torch
from torch import Tensor

from ._masking import masked_mean, working_dtype


def gradnorm_gradient(weights: Tensor, norms: Tensor, losses: Tensor, first: Tensor, *, alpha: float) -> Tensor:
    """∂/∂w_i of Σ|w_i n_i − sg[n̄ r_i^α]|, that is n_i·sign(·); `norms` are the w_i n_i, NaN where a task is absent."""
    dtype = working_dtype(norms.device)
    norms, losses, first = (t.detach().to(dtype) for t in (norms, losses, first))
    present = norms.isfinite() & losses.isfinite() & first.isfinite()
    ratio = torch.where(present, losses / first, 0.0)
    rate = ratio / masked_mean(ratio, present).clamp_min(1e-30)
    weighted = torch.where(present, norms, 0.0)
    target = masked_mean(weighted, present) * rate.clamp_min(0.0) ** alpha
    plain = weighted / weights.detach().to(dtype)
    return torch.where(present, plain * (weighted - target).sign(), 0.0)


def gradnorm_proxy_weights(gram: Tensor, *, floor: float = 1e-4) -> Tensor:
    """w_i ∝ 1/max(‖g_i‖², floor), Σw = T over the present tasks: the paper's GradNormProxy."""
    squares = gram.diagonal(dim1=-2, dim2=-1).to(working_dtype(gram.device))
    present = squares.isfinite()
    inverse = present / torch.where(present, squares, 1.0).clamp_min(floor)
    count = present.sum(-1, keepdim=True)
    weights = inverse * count / inverse.sum(-1, keepdim=True).clamp_min(1e-300)
    return weights.to(torch.promote_types(gram.dtype, torch.float32))
