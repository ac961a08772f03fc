"""Rules with learned, unbounded log-variances: Kendall, its ℓ1-normalised form, and IMTL-L."""

from torch import Tensor

from ._masking import masked_softmax, split_absent
from ._step import Step, make_step


def kendall(log_vars: Tensor, losses: Tensor) -> Step:
    """Compute Kendall's objective Σ ½ e^{−s_i} L_i + ½ s_i with learned s = log σ².

    The value is a negative log-likelihood and may be negative.

    Args:
        log_vars (Tensor): Log-variances s, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective, the weights ½ e^{−s_i}, and the gradient of s.

    Example:
        >>> kendall(torch.zeros(2), torch.tensor([4.0, 1.0]))
        Step(objective=tensor(2.5000), weights=tensor([0.5000, 0.5000]), gradient=tensor([-1.5000,  0.0000]))

    References:
        Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics.
        https://arxiv.org/abs/1705.07115
    """
    x, present = split_absent(losses)
    s = log_vars.detach().to(x.dtype)
    weights = 0.5 * (-s).exp() * present
    objective = (weights * x + 0.5 * s * present).sum(-1)
    return make_step(losses, objective, weights, (0.5 - weights * x) * present)


def kendall_l1(log_vars: Tensor, losses: Tensor) -> Step:
    """Compute Σ sg[α_i] L_i with α = softmax(−s).

    The log-variances s are trained as in :func:`kendall`, on detached losses.

    Args:
        log_vars (Tensor): Log-variances s, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective, the weights α, and the gradient of s.

    Example:
        >>> kendall_l1(torch.zeros(2), torch.tensor([4.0, 1.0])).weights
        tensor([0.5000, 0.5000])

    References:
        Subedi 2026, the normalisation ablation of the BPGS paper.
    """
    x, present = split_absent(losses)
    s = log_vars.detach().to(x.dtype)
    alpha = masked_softmax(-s, present)
    return make_step(losses, (alpha * x).sum(-1), alpha, 0.5 * (1 - (-s).exp() * x) * present)


def imtl_l(log_scales: Tensor, losses: Tensor) -> Step:
    """Compute IMTL-L's objective Σ e^{s_i} L_i − s_i with learned s, whose optimum makes every scaled loss 1.

    Args:
        log_scales (Tensor): Log-scales s, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective, the weights e^{s_i}, and the gradient of s.

    Example:
        >>> imtl_l(torch.zeros(2), torch.tensor([4.0, 1.0])).gradient
        tensor([3., 0.])

    References:
        Liu et al., Towards Impartial Multi-task Learning. https://openreview.net/forum?id=IMPnRXEWpvr
    """
    x, present = split_absent(losses)
    s = log_scales.detach().to(x.dtype)
    weights = s.exp() * present
    return make_step(losses, (weights * x - s * present).sum(-1), weights, (weights * x - 1) * present)
