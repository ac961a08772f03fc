"""CoV-Weighting: weights from the coefficient of variation of each loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._floats import FLOOR
from ._masking import clamp_to_dtype, masked_mean, output_dtype, split_absent, working_dtype
from ._outliers import UNUSABLE, limit_outliers

VARIANCE_FLOOR = 1e-8  # added to the variance, as in the authors' code: constant losses get equal weights
OBSERVATIONS = 2  # losses of a task from which its variation is known


class CoVState(NamedTuple):
    """Running statistics of :func:`cov_update`, each of shape (…, T). All are zero at the start.

    Attributes:
        steps (Tensor): Number of losses of each task so far.
        mean_loss (Tensor): Mean of the losses L.
        mean_ratio (Tensor): Mean of the ratios l, where l is a loss divided by the mean of the losses before it.
        variance (Tensor): Variance of the ratios l.
    """

    steps: Tensor
    mean_loss: Tensor
    mean_ratio: Tensor
    variance: Tensor


def cov_update(state: CoVState, losses: Tensor, *, decay: float | None = None) -> CoVState:
    """Add the losses of one step to the statistics of CoV-Weighting.

    l(t) = L(t) / mean(L(1), …, L(t−1)), and 1 for the first loss of a task. Mean and variance of l are updated by
    Welford's algorithm. With `decay`, all three are exponential averages, started by the first value: the mean becomes
    γ mean + (1 − γ) l, and the variance γ variance + (1 − γ)(l − old mean)(l − new mean). The authors' code lets the
    means decay, but not the variance.

    Args:
        state (CoVState): Statistics after the previous step; zeros at the start.
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        decay (float, optional): Decay rate γ in [0, 1). None weights all steps equally. Default: None.

    Returns:
        CoVState: The new statistics, in the precision of the old ones. Absent tasks keep theirs. A loss above 1e19
        times the mean loss counts as absent. With `decay`, a loss above 1e6 times the mean loss is limited, such that
        the mean grows by a factor of 11 at most.

    Example:
        >>> zeros = torch.zeros(2)
        >>> state = CoVState(zeros, zeros, zeros, zeros)
        >>> for losses in ([1.0, 4.0], [3.0, 4.0]):
        ...     state = cov_update(state, torch.tensor(losses))
        >>> state.mean_ratio, state.variance
        (tensor([2., 1.]), tensor([1., 0.]))

    References:
        Groenendijk et al., Multi-Loss Weighting with Coefficient of Variations. https://arxiv.org/abs/2009.01717
    """
    x, present = split_absent(losses)
    steps, mean_loss, mean_ratio, variance = (part.detach().to(x.dtype) for part in state)
    seen = steps > 0
    # Such a loss would dominate the statistics for the rest of the run.
    present = present & ~((steps >= OBSERVATIONS) & (mean_loss > 0) & (x.abs() > UNUSABLE * mean_loss))
    if decay is not None:
        x = torch.where(seen, limit_outliers(x, mean_loss, 1 - decay, least_mean=FLOOR), x)
    ratio = torch.nan_to_num(torch.where(seen, x / mean_loss, 1.0), nan=1.0)
    keep = 1 - 1 / (steps + 1) if decay is None else decay * seen.to(x.dtype)
    new_mean = keep * mean_ratio + (1 - keep) * ratio
    new = CoVState(
        steps + 1,
        keep * mean_loss + (1 - keep) * x,
        new_mean,
        # With keep = 1 − 1/n this is Welford's sum of squares divided by n.
        keep * variance + (1 - keep) * (ratio - mean_ratio) * (ratio - new_mean),
    )
    return CoVState(
        *(torch.where(present, clamp_to_dtype(b, a.dtype), a.detach()) for a, b in zip(state, new, strict=True))
    )


def cov_weights(losses: Tensor, state: CoVState) -> Tensor:
    """Compute the weights of CoV-Weighting, w_i ∝ std(l_i) / mean(l_i) with Σw = 1 over the present tasks.

    A loss that varies a lot relative to its mean is still being learned and gets more weight. The authors compute the
    weights of a step from the statistics before it: call :func:`cov_update` afterwards.

    Args:
        losses (Tensor): Losses, shape (…, T). Only used to tell which tasks are present.
        state (CoVState): Statistics of the steps so far.

    Returns:
        Tensor: The weights, shape (…, T); 0 for absent tasks. A task with fewer than two losses so far gets the mean
        weight of the others, so that the weights of the first two steps are equal.

    Example:
        >>> state = CoVState(*torch.tensor([[4.0, 4.0], [1.0, 1.0], [1.0, 0.5], [0.01, 0.01]]))
        >>> cov_weights(torch.ones(2), state)
        tensor([0.3333, 0.6667])

    References:
        Groenendijk et al., Multi-Loss Weighting with Coefficient of Variations. https://arxiv.org/abs/2009.01717
    """
    dtype = working_dtype(losses.device)
    present = torch.isfinite(losses)
    steps, _, mean, variance = (part.detach().to(dtype) for part in state)
    known = present & (steps >= OBSERVATIONS)
    smallest = torch.finfo(dtype).tiny
    # Both factors are bounded, so that their quotient does not overflow.
    variation = (variance.clamp_min(0.0) + VARIANCE_FLOOR).sqrt() / mean.abs().clamp_min(smallest**0.5)
    others = torch.where(known.any(-1, keepdim=True), masked_mean(torch.where(known, variation, 0.0), known), 1.0)
    variation = torch.where(known, variation, others) * present
    share = variation / variation.amax(-1, keepdim=True).clamp_min(smallest)
    return (share / share.sum(-1, keepdim=True).clamp_min(smallest)).to(output_dtype(losses))
