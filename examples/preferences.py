"""Give one task three times the importance of the other, in loss space and in gradient space.

python examples/preferences.py
"""

import torch
from torch import nn

import counterpoise as cp

TASKS = ("users", "experts")


def train(name: str, importance: dict[str, float] | None, steps: int) -> dict[str, float]:
    """Predict one score that two groups rate differently, and return the mean squared error for each group."""
    torch.manual_seed(0)
    x, noise = torch.randn(256, 8), torch.randn(2, 256)
    ratings = {"users": x[:, 0] + noise[0], "experts": x[:, 1] + noise[1]}
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    balancer = cp.make(name, TASKS, importance=importance)
    optimizer = torch.optim.Adam([{"params": network.parameters()}, *balancer.param_groups()], lr=1e-2)
    errors = {}
    for _ in range(steps):
        score = network(x)[:, 0]
        losses = {task: (score - rating).square().mean() for task, rating in ratings.items()}
        optimizer.zero_grad()
        balancer.backward(losses, shared=network.parameters())
        optimizer.step()
        errors = {task: loss.item() for task, loss in losses.items()}
    return errors


def main(steps: int = 50) -> None:
    for name in ("bpgs", "pcgrad", "upgrad", "nash-mtl"):
        for importance in (None, {"experts": 3.0}):
            errors = train(name, importance, steps)
            text = ", ".join(f"{task} {error:.2f}" for task, error in errors.items())
            print(f"{name}, importance {importance}: {text}")


if __name__ == "__main__":
    main()
