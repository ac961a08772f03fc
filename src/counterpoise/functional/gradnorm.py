"""GradNorm and its proxy: weights from gradient norms."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._masking import masked_mean, output_dtype, working_dtype


def gradnorm_gradient(weights: Tensor, norms: Tensor, losses: Tensor, first: Tensor, *, alpha: float) -> Tensor:
    """Compute the gradient of GradNorm's loss Σ|w_i n_i − sg[n̄ r_i^α]| with respect to the weights w.

    n_i is the norm of the unweighted gradient, n̄ the mean of w_i n_i, and r_i the relative training rate: L_i/L_i(0)
    divided by its mean over the tasks. The result is n_i · sign(w_i n_i − n̄ r_i^α).

    Args:
        weights (Tensor): Task weights w, shape (…, T).
        norms (Tensor): Norms of the weighted gradients, w_i n_i, shape (…, T). NaN for an absent task.
        losses (Tensor): Current losses, shape (…, T).
        first (Tensor): Losses at the start of training, shape (…, T).
        alpha (float): Strength of the balancing of training rates.

    Returns:
        Tensor: Shape (…, T); 0 for absent tasks.

    Example:
        >>> ones = torch.ones(2)
        >>> gradnorm_gradient(ones, torch.tensor([3.0, 1.0]), ones, ones, alpha=1.5)
        tensor([ 3., -1.], dtype=torch.float64)

    References:
        Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks.
        https://arxiv.org/abs/1711.02257
    """
    dtype = working_dtype(norms.device)
    norms, losses, first = (t.detach().to(dtype) for t in (norms, losses, first))
    present = norms.isfinite() & losses.isfinite() & first.isfinite()
    ratio = torch.where(present, losses / first, 0.0)
    rate = ratio / masked_mean(ratio, present).clamp_min(1e-30)
    weighted = torch.where(present, norms, 0.0)
    target = masked_mean(weighted, present) * rate.clamp_min(0.0) ** alpha
    unweighted = weighted / weights.detach().to(dtype)
    return torch.where(present, unweighted * (weighted - target).sign(), 0.0)


@torch.no_grad()
def gradnorm_proxy_weights(gram: Tensor, *, floor: float = 1e-4) -> Tensor:
    """Compute w_i ∝ 1/max(‖g_i‖², floor) with Σw = T over the present tasks: GradNormProxy of the BPGS paper.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T). Only the diagonal is used.
        floor (float, optional): Lower bound of the squared norms. Default: 1e-4.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> gradnorm_proxy_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        tensor([1.6000, 0.4000])
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).to(working_dtype(gram.device))
    present = squares.isfinite()
    inverse = present / torch.where(present, squares, 1.0).clamp_min(floor)
    count = present.sum(-1, keepdim=True)
    weights = inverse * count / inverse.sum(-1, keepdim=True).clamp_min(tolerances.TINY)
    return weights.to(output_dtype(gram))
