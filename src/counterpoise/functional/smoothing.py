"""CR-MOGM: weights of any gradient-space method, smoothed over the steps."""

import torch
from torch import Tensor


def smooth_weights(previous: Tensor, current: Tensor, *, alpha: float = 0.9) -> Tensor:
    """Compute the moving average λ ← αλ + (1 − α)λ̂ of the weights.

    If λ and λ̂ are on the simplex, so is the result.

    Args:
        previous (Tensor): Smoothed weights λ of the last step, shape (…, T). NaN where there is none yet: the result is
            then λ̂.
        current (Tensor): Weights λ̂ of this step, shape (…, T). NaN for an absent task, which keeps its λ.
        alpha (float, optional): Share α of the previous weights, in [0, 1]. Default: 0.9.

    Returns:
        Tensor: The smoothed weights, shape (…, T).

    Example:
        >>> smooth_weights(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        tensor([0.5500, 0.4500])
        >>> smooth_weights(torch.tensor([torch.nan, torch.nan]), torch.tensor([1.0, 0.0]))  # the first step
        tensor([1., 0.])

    References:
        Zhou et al., On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond.
        https://proceedings.neurips.cc/paper_files/paper/2022/hash/f91bd64a3620aad8e70a27ad9cb3ca57-Abstract-Conference.html
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    previous, current = previous.detach(), current.detach()
    known = torch.where(current.isnan(), previous, current)
    return torch.where(previous.isnan(), known, torch.lerp(known, previous, alpha))
