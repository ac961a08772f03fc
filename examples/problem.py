"""The problem of the examples: two tasks on shared features, whose losses differ by a factor of a thousand."""

import torch
from torch import Tensor, nn

TASKS = ("shape", "mass")


class Network(nn.Module):
    """A shared encoder and one linear head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.heads = nn.ModuleDict({task: nn.Linear(64, 1) for task in TASKS})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.encoder(x)
        return {task: head(z)[:, 0] for task, head in self.heads.items()}


def batch(size: int = 64, device: str = "cpu") -> tuple[Tensor, dict[str, Tensor]]:
    """Draw random inputs and their targets."""
    x = torch.randn(size, 8, device=device)
    return x, {"shape": x[:, :4].sin().sum(1), "mass": 30 * x[:, 4:].prod(1)}


def losses(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean squared error of each task."""
    return {task: (outputs[task].float() - targets[task]).square().mean() for task in outputs}
