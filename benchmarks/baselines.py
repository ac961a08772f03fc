"""Baselines for the benchmarks: Kendall and BPGS composed of plain tensor operations."""

import math

import torch
from torch import Tensor, nn


class ComposedKendall(nn.Module):
    """Kendall from seven tensor operations, without any checks."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses: Tensor) -> Tensor:
        return (0.5 * torch.exp(-self.log_vars) * losses + 0.5 * self.log_vars).sum()


class NaiveBPGS(nn.Module):
    """BPGS written equation by equation from the paper, without calibration, absent tasks or checks."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(tasks))
        self.tau = math.sqrt(tasks - 1) + 0.1

    def forward(self, losses: Tensor) -> Tensor:
        log = losses.detach().clamp(min=1e-8).log()
        mu, std = log.mean(), log.std(unbiased=False).clamp(min=1e-4)
        s = mu + std * self.tau * (2 * torch.sigmoid(self.theta) - 1)
        omega = torch.exp(-s)
        alpha = omega / omega.sum()
        j_net = (alpha.detach() * losses).sum()
        j_unc = (0.5 * omega * losses.detach() + 0.5 * s).sum()
        return j_net + 100 * j_unc
