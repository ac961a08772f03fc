"""Changes of weights after balancing: a bound on their ratio, and the importance of tasks."""

import torch
from torch import Tensor

SMALLEST_SHARE = 1e-12  # a weight of zero counts as this share of the largest one


def limit_ratio(weights: Tensor, present: Tensor, max_ratio: float) -> Tensor:
    """Lower the largest weights until none exceeds `max_ratio` times the smallest one of the present tasks.

    Args:
        weights (Tensor): Non-negative weights, shape (…, T).
        present (Tensor): Boolean mask of the present tasks, shape (…, T).
        max_ratio (float): Bound on the ratio of two weights, at least 1.

    Returns:
        Tensor: The bounded weights, shape (…, T); 0 for absent tasks.

    Example:
        >>> limit_ratio(torch.tensor([1.0, 0.5, 0.001]), torch.tensor([True, True, True]), 100.0)
        tensor([0.1000, 0.1000, 0.0010])
    """
    largest = torch.where(present, weights, 0.0).amax(-1, keepdim=True)
    smallest = torch.where(present, weights, torch.inf).amin(-1, keepdim=True)
    smallest = torch.maximum(smallest, SMALLEST_SHARE * largest)
    bounded = torch.minimum(torch.maximum(weights, smallest), max_ratio * smallest)
    return torch.where(present, bounded, 0.0)


def raise_to_ratio(weights: Tensor, present: Tensor, max_ratio: float) -> Tensor:
    """Raise the smallest weights until the largest one exceeds none by more than `max_ratio`.

    For weights that may be zero or negative: `limit_ratio` would lower the others to nearly nothing.

    Args:
        weights (Tensor): Weights, shape (…, T).
        present (Tensor): Boolean mask of the present tasks, shape (…, T).
        max_ratio (float): Bound on the ratio of two weights, at least 1.

    Returns:
        Tensor: The bounded weights, shape (…, T); 0 for absent tasks.

    Example:
        >>> raise_to_ratio(torch.tensor([1.0, 0.5, -0.2]), torch.tensor([True, True, True]), 10.0)
        tensor([1.0000, 0.5000, 0.1000])
    """
    largest = torch.where(present, weights, 0.0).amax(-1, keepdim=True)
    return torch.where(present, torch.maximum(weights, largest / max_ratio), 0.0)


def rescale_to_sum(weights: Tensor, total: Tensor) -> Tensor:
    """Scale weights (…, T) so that they sum to `total`, (…, 1). Zeros stay zero.

    Args:
        weights (Tensor): Non-negative weights, shape (…, T).
        total (Tensor): The sums, shape (…, 1).

    Returns:
        Tensor: The rescaled weights, shape (…, T).

    Example:
        >>> rescale_to_sum(torch.tensor([3.0, 1.0]), torch.tensor([1.0]))
        tensor([0.7500, 0.2500])
    """
    current = weights.sum(-1, keepdim=True)
    return weights * torch.where(current > 0, total / current, 1.0)
