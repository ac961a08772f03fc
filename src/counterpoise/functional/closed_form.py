"""Weights that follow from the losses alone: nothing is learned."""

import torch
from torch import Tensor

from ._masking import masked_mean, masked_softmax, split_absent
from ._step import Step, finish

FLOOR = 1e-8  # under every logarithm and every 1/L


def weighted_sum(weights: Tensor, losses: Tensor) -> Step:
    """Σ sg[w_i] L_i over the present tasks."""
    x, present = split_absent(losses)
    weights = weights.detach().to(x.dtype) * present
    return finish(losses, (weights * x).sum(-1), weights)


def uw_o(losses: Tensor, scales: Tensor | None = None, *, normalise: bool = False) -> Step:
    """w_i = 1/sg[L_i], the optimum of Kendall's objective; of `scales` instead of the losses, where those are given."""
    x, present = split_absent(losses)
    scales = x if scales is None else scales.detach().to(x.dtype)
    weights = present / scales.clamp_min(FLOOR)
    if normalise:
        # As a softmax of logarithms, so that one vanishing loss cannot overflow the sum.
        weights = masked_softmax(-scales.clamp_min(FLOOR).log(), present)
    return weighted_sum(weights, losses)


def uw_so(losses: Tensor, *, temperature: float = 2.0) -> Step:
    """w = softmax((1/sg[L]) / temperature)."""
    x, present = split_absent(losses)
    return weighted_sum(masked_softmax(x.clamp_min(FLOOR).reciprocal() / temperature, present), losses)


def geometric_mean(losses: Tensor) -> Step:
    """(Π L_i)^{1/T} over the present tasks, through the mean logarithm; 0 where none is present."""
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    mean = masked_mean(x.log(), present).exp() * present.any(-1, keepdim=True)
    count = present.sum(-1, keepdim=True).clamp_min(1)
    return finish(losses, mean.squeeze(-1), mean * present / (count * x))


def log_sum(losses: Tensor) -> Step:
    """Σ log L_i: the scale-free warm-up of STCH."""
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    return finish(losses, (x.log() * present).sum(-1), present / x)


def stch(losses: Tensor, nadir: Tensor, *, mu: float = 1.0) -> Step:
    """Smooth Tchebycheff: μ log Σ exp(ℓ_i/μ) with ℓ = log(L/nadir), a soft maximum of the relative losses."""
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    exponents = (x / nadir.to(x.dtype).clamp_min(FLOOR)).log() / mu
    # softmax(ℓ/μ) = exp(ℓ/μ) / Σ, so the soft maximum is read off any task; logsumexp is the stable way.
    soft = torch.where(present, exponents, torch.finfo(x.dtype).min).logsumexp(-1) * mu
    objective = torch.where(present.any(-1), soft, 0.0)
    return finish(losses, objective, masked_softmax(exponents, present) / x)
