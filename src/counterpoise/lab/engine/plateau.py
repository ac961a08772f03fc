"""A learning rate for each run of a stack that is reduced when a monitored value stops decreasing."""

import torch
from torch import Tensor

FACTOR, THRESHOLD = 0.7, 1e-4
PATIENCE = {"plateau": 5, "plateau-10": 10}
"""Epochs without a decrease that each form of the schedule tolerates."""


class Plateau:
    """The schedule of `torch.optim.lr_scheduler.ReduceLROnPlateau` for R runs at once.

    A rate is multiplied by 0.7 after more than `patience` epochs in a row without a relative decrease of 1e-4.

    Args:
        runs: the number of runs.
        least: the lowest learning rate.
        patience: the number of epochs without a decrease that are tolerated.
    """

    def __init__(self, runs: int, *, least: float = 0.0, patience: int = PATIENCE["plateau"]) -> None:
        self.least, self.patience = least, patience
        self.best = torch.full((runs,), torch.inf, dtype=torch.float64)
        self.waited = torch.zeros(runs, dtype=torch.long)
        self.reductions = torch.zeros(runs, dtype=torch.long)

    def step(self, values: Tensor) -> None:
        """Take the values (R,) of an epoch into account."""
        better = values < self.best * (1 - THRESHOLD)
        self.best = torch.where(better, values.to(self.best), self.best)
        self.waited = torch.where(better, 0, self.waited + 1)
        reduced = self.waited > self.patience
        self.reductions += reduced
        self.waited[reduced] = 0

    def factors(self, rates: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the factors (R, 1) of initial learning rates (R, 1) for some of the runs."""
        factor = FACTOR ** self.reductions[rows].double().unsqueeze(1)
        lowest = torch.where(rates > 0, self.least / rates.double(), 0.0).clamp_max(1.0)
        return torch.maximum(factor, lowest).to(rates)

    def state_dict(self) -> dict[str, Tensor]:
        return {"best": self.best, "waited": self.waited, "reductions": self.reductions}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.best, self.waited, self.reductions = (state[name] for name in ("best", "waited", "reductions"))
