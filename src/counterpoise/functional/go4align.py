"""GO4Align: risk-guided weights, averaged within groups of tasks with similar weights."""

import torch
from torch import Tensor

from ._floats import FLOOR
from ._masking import clamp_to_dtype, masked_softmax, output_dtype, split_absent
from ._outliers import UNUSABLE

COST_ROUNDING = 1e-13  # difference of two costs, relative to the sum of squares, that rounding explains


def go4align_update(log_probabilities: Tensor, losses: Tensor, *, step_size: float = 1e-4) -> Tensor:
    """Update the task probabilities of GO4Align, p_i ∝ p_i exp(−η L_i), in log space.

    The logarithms do not underflow, so that a task can recover from a large loss.

    Args:
        log_probabilities (Tensor): Logarithms of the probabilities, shape (…, T); any constant vector at the start.
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        step_size (float, optional): Step size η. Default: 1e-4.

    Returns:
        Tensor: The new log-probabilities, shape (…, T), in the precision of the old ones. An absent task takes no step,
        nor does one with a loss above 1e19, from which its probability would not recover.

    Example:
        >>> go4align_update(torch.zeros(2), torch.tensor([4.0, 1.0]), step_size=1.0).exp()
        tensor([0.0474, 0.9526])

    References:
        Shen et al., GO4Align: Group Optimization for Multi-Task Alignment. https://arxiv.org/abs/2404.06486
    """
    x, present = split_absent(losses)
    present = present & (x.abs() <= UNUSABLE)  # the probability would not recover from such a loss
    logits = log_probabilities.detach().to(x.dtype) - torch.where(present, step_size * x, 0.0)
    return clamp_to_dtype(torch.log_softmax(logits, -1), log_probabilities.dtype)


def go4align_weights(log_probabilities: Tensor, losses: Tensor, *, groups: int = 2) -> Tensor:
    """Compute the weights of GO4Align: p_i Σ_j L_j / L_i, averaged within groups of tasks.

    The groups are the optimal one-dimensional k-means clusters of the weights. They are computed exactly, by dynamic
    programming over the sorted weights, so that the result is deterministic. The authors' code runs Lloyd's algorithm
    from random centres. If two partitions are equally good, a task between two groups joins the one of larger weights.

    Call :func:`go4align_update` with the losses of the step first, as the authors do. Their command line uses one group
    by default, which gives all tasks the mean weight.

    Args:
        log_probabilities (Tensor): Logarithms of the probabilities p, up to a constant, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        groups (int, optional): Largest number of groups. With as many groups as tasks, nothing is averaged.
            Default: 2.

    Returns:
        Tensor: The weights, shape (…, T); 0 for absent tasks.

    Example:
        >>> go4align_weights(torch.zeros(3), torch.tensor([1.0, 1.5, 6.0]))
        tensor([2.3611, 2.3611, 0.4722])

    References:
        Shen et al., GO4Align: Group Optimization for Multi-Task Alignment. https://arxiv.org/abs/2404.06486
    """
    if groups < 1:
        raise ValueError(f"groups is {groups}, expected a number of groups, 1 or more")
    x, present = split_absent(losses)
    probabilities = masked_softmax(log_probabilities.detach().to(x.dtype), present)
    inverse = 1 / x.clamp_min(FLOOR)
    # Multiplying a weight by the sum of the losses does not change the groups.
    means = _group_means(probabilities * inverse, present, groups)
    return clamp_to_dtype(means * (x * present).sum(-1, keepdim=True), output_dtype(losses))


def _group_means(values: Tensor, present: Tensor, groups: int) -> Tensor:
    """Replace each value by the mean of its k-means cluster; absent tasks get 0. The values are not negative."""
    order = torch.where(present, values, torch.inf).argsort(dim=-1, stable=True)  # absent tasks last
    mass = present.gather(-1, order).to(values.dtype)
    largest = (values * present).amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    ordered = (values / largest).gather(-1, order) * mass
    cluster = _optimal_starts(ordered, mass, min(groups, values.shape[-1])).cumsum(-1)
    together = (cluster.unsqueeze(-1) == cluster.unsqueeze(-2)) * mass.unsqueeze(-2)
    sums = (together * ordered.unsqueeze(-2)).sum(-1)
    means = sums / together.sum(-1).clamp_min(1.0) * mass * largest
    return torch.zeros_like(means).scatter(-1, order, means)


def _optimal_starts(ordered: Tensor, mass: Tensor, groups: int) -> Tensor:
    """Return 1 where a cluster starts in the optimal partition of ascending values into at most `groups` clusters."""
    position = torch.arange(ordered.shape[-1], device=ordered.device)
    cost = _interval_costs(ordered, mass).masked_fill(position.unsqueeze(-1) > position, torch.inf)
    rounding = COST_ROUNDING * ordered.square().cumsum(-1)
    best, choices = cost[..., 0, :], []
    for _ in range(groups - 1):
        # best[b] is the cost of the values up to b; the last cluster starts at a, and those before it end at a − 1.
        before = torch.cat([torch.zeros_like(best[..., :1]), best[..., :-1]], -1)
        total = before.unsqueeze(-1) + cost
        best = total.amin(-2)
        # The first start that is optimal up to rounding: argmax returns the first of several ones.
        choices.append((total <= (best + rounding).unsqueeze(-2)).to(torch.int8).argmax(-2))
    starts = (position == 0).expand(ordered.shape)
    end = torch.full_like(position[:1], ordered.shape[-1] - 1).expand(*ordered.shape[:-1], 1)
    for choice in reversed(choices):
        start = choice.gather(-1, end)
        starts = starts | (position == start)
        end = (start - 1).clamp_min(0)
    return starts.to(torch.int64)


def _interval_costs(ordered: Tensor, mass: Tensor) -> Tensor:
    """Return the sum of squared deviations of the values a to b, shape (…, a, b), from cumulative sums.

    The values ascend, so that the rounding error of each sum is relative to the largest value of its interval.
    """

    def between(terms: Tensor) -> Tensor:
        sums = terms.cumsum(-1)
        return sums.unsqueeze(-2) - (sums - terms).unsqueeze(-1)

    count, total, squares = between(mass), between(ordered), between(ordered.square())
    return (squares - total.square() / count.clamp_min(1.0)).clamp_min(0.0)
