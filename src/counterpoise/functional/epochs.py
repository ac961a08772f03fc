"""Weights from the course of training: epoch means, key performance indicators, random draws."""

import torch
from torch import Tensor

from ._masking import working_dtype


def dwa_weights(last: Tensor, before_last: Tensor, *, temperature: float = 2.0) -> Tensor:
    """T · softmax((L̄_{e−1}/L̄_{e−2}) / temperature); a task without two epoch means counts as one that stood still."""
    rate = last / before_last
    rate = torch.where(torch.isfinite(rate), rate, 1.0)
    return torch.softmax(rate / temperature, -1) * rate.shape[-1]


def dtp_weights(kappa: Tensor, *, gamma: float = 1.0) -> Tensor:
    """The focal weight −(1 − κ)^γ log κ: a task with a low indicator κ ∈ (0, 1) comes first."""
    kappa = kappa.to(working_dtype(kappa.device)).clamp(1e-6, 1 - 1e-6)
    return -((1 - kappa) ** gamma) * kappa.log()
