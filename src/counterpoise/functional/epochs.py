"""Weights from the course of training: epoch means and key performance indicators."""

import torch
from torch import Tensor

from ._masking import working_dtype


def dwa_weights(last: Tensor, before_last: Tensor, *, temperature: float = 2.0) -> Tensor:
    """Compute the weights of dynamic weight averaging, T · softmax((L̄_{e−1}/L̄_{e−2}) / temperature).

    Args:
        last (Tensor): Mean losses of the last epoch, shape (…, T).
        before_last (Tensor): Mean losses of the epoch before, shape (…, T).
        temperature (float, optional): Temperature of the softmax. Default: 2.0.

    Returns:
        Tensor: The weights, shape (…, T). A task without two finite epoch means counts as unchanged (ratio 1).

    Example:
        >>> dwa_weights(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]))
        tensor([1.1244, 0.8756])

    References:
        Liu et al., End-to-End Multi-Task Learning with Attention. https://arxiv.org/abs/1803.10704
    """
    rate = last / before_last
    rate = torch.where(torch.isfinite(rate), rate, 1.0)
    return torch.softmax(rate / temperature, -1) * rate.shape[-1]


def dtp_weights(kappa: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Compute the focal weights −(1 − κ)^γ log κ of dynamic task prioritisation.

    Args:
        kappa (Tensor): Key performance indicators in (0, 1), shape (…, T). Lower values get more weight.
        gamma (float, optional): Focusing exponent γ. Default: 1.0.

    Returns:
        Tensor: The weights, shape (…, T), float64 (float32 on MPS).

    Example:
        >>> dtp_weights(torch.tensor([0.5, 0.9]))
        tensor([0.3466, 0.0105], dtype=torch.float64)

    References:
        Guo et al., Dynamic Task Prioritization for Multitask Learning. https://doi.org/10.1007/978-3-030-01270-0_17
    """
    kappa = kappa.to(working_dtype(kappa.device)).clamp(1e-6, 1 - 1e-6)
    return -((1 - kappa) ** gamma) * kappa.log()
