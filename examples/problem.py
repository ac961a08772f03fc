"""What the examples train on: two tasks on shared features, one loss a thousand times the other."""

import torch
from torch import Tensor, nn

TASKS = ("shape", "mass")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.heads = nn.ModuleDict({task: nn.Linear(64, 1) for task in TASKS})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.encoder(x)
        return {task: head(z)[:, 0] for task, head in self.heads.items()}


def batch(size: int = 64, device: str = "cpu") -> tuple[Tensor, dict[str, Tensor]]:
    x = torch.randn(size, 8, device=device)
    return x, {"shape": x[:, :4].sin().sum(1), "mass": 30 * x[:, 4:].prod(1)}


def losses(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    return {task: (outputs[task].float() - targets[task]).square().mean() for task in outputs}
