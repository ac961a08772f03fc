"""Learned log-variances without bounds: Kendall, its ℓ1-normalised form, and IMTL-L."""

from torch import Tensor

from ._masking import masked_softmax, split_absent
from ._step import Step, finish


def kendall(log_vars: Tensor, losses: Tensor) -> Step:
    """Σ ½ e^{−s_i} L_i + ½ s_i, with s = log σ² learned. The value may be negative: it is a log-likelihood."""
    x, present = split_absent(losses)
    s = log_vars.detach().to(x.dtype)
    weights = 0.5 * (-s).exp() * present
    objective = (weights * x + 0.5 * s * present).sum(-1)
    return finish(losses, objective, weights, (0.5 - weights * x) * present)


def kendall_l1(log_vars: Tensor, losses: Tensor) -> Step:
    """The network minimises Σ sg[α_i] L_i with α = softmax(−s); s is trained as in Kendall, on detached losses."""
    x, present = split_absent(losses)
    s = log_vars.detach().to(x.dtype)
    alpha = masked_softmax(-s, present)
    return finish(losses, (alpha * x).sum(-1), alpha, 0.5 * (1 - (-s).exp() * x) * present)


def imtl_l(log_scales: Tensor, losses: Tensor) -> Step:
    """Σ e^{s_i} L_i − s_i, with s learned: every scaled loss is driven to 1."""
    x, present = split_absent(losses)
    s = log_scales.detach().to(x.dtype)
    weights = s.exp() * present
    return finish(losses, (weights * x - s * present).sum(-1), weights, (weights * x - 1) * present)
