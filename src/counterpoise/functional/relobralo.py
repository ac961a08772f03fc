"""ReLoBRaLo and SoftAdapt: weights from the ratio of each loss to an earlier value of itself."""

import torch
from torch import Tensor

from ._masking import clamp_to_dtype, masked_softmax, output_dtype, split_absent


def relobralo_weights(
    losses: Tensor,
    previous_losses: Tensor,
    first_losses: Tensor,
    previous_weights: Tensor,
    rho: Tensor | float,
    *,
    alpha: float = 0.999,
    temperature: float = 0.1,
) -> Tensor:
    """Compute the weights of ReLoBRaLo (relative loss balancing with random lookback).

    λ(t) = α (ρ λ(t−1) + (1 − ρ) bal(t, 0)) + (1 − α) bal(t, t−1) with bal(t, t′) = T · softmax(L(t) / (τ L(t′))), where
    ρ is 0 or 1, drawn by the caller, and T is the number of present tasks. The weights do not change if a loss is
    multiplied by a constant.

    The defaults of α and τ are those of the paper for Burgers' equation, where E[ρ] = 0.9999. physicsnemo-sym and
    neuraloperator use 0.95 and 1.0, with E[ρ] = 0.99.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        previous_losses (Tensor): Losses of the previous step, shape (…, T). NaN for a task without one.
        first_losses (Tensor): Losses of the first step, shape (…, T). NaN for a task without one.
        previous_weights (Tensor): Weights λ(t−1), shape (…, T); ones at the start.
        rho (Tensor or float): The draw ρ, 1 to keep λ(t−1) and 0 to look back to the first losses. A tensor is
            broadcast to (…, T): one draw per replica has shape (…, 1).
        alpha (float, optional): Decay rate α of the weights. Default: 0.999.
        temperature (float, optional): Temperature τ of the softmax. Default: 0.1.

    Returns:
        Tensor: The weights λ(t), shape (…, T). An absent task keeps its λ(t−1), and :func:`weighted_sum` gives it
        weight 0. A task without an earlier loss counts as unchanged (ratio 1).

    Example:
        >>> ones = torch.ones(2)
        >>> relobralo_weights(torch.tensor([1.0, 0.9]), ones, ones, ones, 0.0)
        tensor([1.4621, 0.5379])

    References:
        Bischof and Kraus, Multi-Objective Loss Balancing for Physics-Informed Deep Learning.
        https://arxiv.org/abs/2110.09813
    """
    since_first, since_previous = _balance(losses, torch.stack([first_losses, previous_losses]), temperature)
    kept = previous_weights.detach().to(since_first.dtype)
    weights = alpha * (rho * kept + (1 - rho) * since_first) + (1 - alpha) * since_previous
    return clamp_to_dtype(torch.where(torch.isfinite(losses), weights, kept), output_dtype(losses))


def softadapt_weights(losses: Tensor, previous: Tensor) -> Tensor:
    """Compute the weights of SoftAdapt, T · softmax(L(t) / L(t−1)) over the T present tasks.

    This is the form with ratios, as ReLoBRaLo's paper compares it and physicsnemo-sym and neuraloperator implement it.
    The paper of SoftAdapt uses differences, softmax(β (L(t) − L(t−1))) with β = 0.1 and without the factor T, which
    depend on the scale of the losses. Its variants divide the differences by their sum, or multiply the exponentials by
    the losses.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        previous (Tensor): Losses of the previous step, shape (…, T). NaN for a task without one.

    Returns:
        Tensor: The weights, shape (…, T); 0 for absent tasks. A task without a previous loss counts as unchanged
        (ratio 1), so that all weights are 1 at the first step.

    Example:
        >>> softadapt_weights(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]))
        tensor([1.2449, 0.7551])

    References:
        Heydari et al., SoftAdapt: Techniques for Adaptive Loss Weighting of Neural Networks with Multi-Part Loss
        Functions. https://arxiv.org/abs/1912.12355
    """
    return _balance(losses, previous, 1.0).to(output_dtype(losses))


def _balance(losses: Tensor, reference: Tensor, temperature: float) -> Tensor:
    """Return T · softmax(L / (τ L′)) over the T present tasks, in working precision."""
    x, present = split_absent(losses)
    # A ratio without a meaning (0/0, or no earlier loss) counts as 1; one that overflows is the largest number.
    exponents = torch.nan_to_num(x / (temperature * reference.detach().to(x.dtype)), nan=1 / temperature)
    return masked_softmax(exponents, present) * present.sum(-1, keepdim=True)
