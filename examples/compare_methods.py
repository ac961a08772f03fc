"""Compare methods on houses: a price in thousands (squared error) and whether a house is sold (cross-entropy).

python examples/compare_methods.py

The command line adds a report, processes and a choice of learning rates:

counterpoise compare examples/compare_methods.py:train --tasks price,sold --method static --method bpgs
    --better "price error=lower" --better accuracy=higher --seeds 0-4 --lr 0.01 --lr 0.003
"""

import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.lab import compare

TASKS = ("price", "sold")
TRAINING_ROWS = 512


def houses(seed: int, rows: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """Draw features, prices in thousands, and whether each house is sold."""
    stream = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(rows, 6, generator=stream), torch.randn(rows, 2, generator=stream)
    price = 300 + 80 * (x[:, 0] + x[:, 1] * x[:, 2]) + 20 * noise[:, 0]
    sold = x[:, 3].sin() + x[:, 4] * x[:, 5] + 0.3 * noise[:, 1] > 0
    return x, price, sold.float()


def train(balancer: cp.Balancer, *, seed: int, lr: float = 1e-2, steps: int = 300) -> dict[str, float]:
    """Train a network with a balancer, and return its scores on held-out houses."""
    x, price, sold = houses(seed)
    trunk, head = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 2)

    def losses(rows: Tensor) -> dict[str, Tensor]:
        output = head(trunk(x[rows]))
        return {
            "price": F.mse_loss(output[:, 0], price[rows]),
            "sold": F.binary_cross_entropy_with_logits(output[:, 1], sold[rows]),
        }

    network = nn.ModuleList([trunk, head])
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=lr)
    for _ in range(steps):
        rows = torch.randint(TRAINING_ROWS, (64,))
        optimizer.zero_grad()
        balancer.backward(losses(rows), shared=trunk.parameters())
        optimizer.step()
        with torch.no_grad():
            balancer.step_end(losses(rows))  # FAMO needs it
    with torch.no_grad():
        output = head(trunk(x[TRAINING_ROWS:]))
    return {
        "price error": F.l1_loss(output[:, 0], price[TRAINING_ROWS:]).item(),
        "accuracy": ((output[:, 1] > 0) == sold[TRAINING_ROWS:].bool()).float().mean().item(),
    }


def main(steps: int = 300) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = compare(
            train,
            tasks=TASKS,
            methods=["static", "bpgs", "bpgs + pcgrad"],
            better={"price error": "lower", "accuracy": "higher"},
            seeds=range(3),
            options={"steps": steps},
            executor="inline",
            out=folder,
        )
    (scores,) = done.report.frames.values()
    print(scores.groupby("method")[["price error ↓", "accuracy ↑"]].mean().round(3))


if __name__ == "__main__":
    main()
