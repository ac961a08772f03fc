"""Pure loss rescaling (the paper's §5.1): five tasks, and the loss of one of them multiplied by 1, 10, 100, 1000.

    python examples/rescaling.py [--seeds 42 43 44] [--epochs 20]

Data, network and training follow what the paper's authors ran: one seeded generator draws a nonlinear feature map and
five correlated tasks of different kinds; a small network trains for 20 epochs with Adam; each task is scored on rows
that were held out. Every number printed is computed here.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import counterpoise as cp

TASKS = ("regression", "robust", "binary", "classes", "direction")
WIDTHS = (1, 1, 1, 6, 3)
METHODS: dict[str, Callable[[], cp.Balancer]] = {
    "Kendall": lambda: cp.Kendall(TASKS),
    "UWSO": lambda: cp.UWSO(TASKS),
    "BPGS": lambda: cp.BPGS(TASKS),
    "BPGS, raw ω": lambda: cp.BPGS(TASKS, normalise=False),
}
ROWS, INPUTS, LATENT, CLASSES, FLIP = 1536, 24, 20, 6, 0.08


def correlated(r: Tensor, count: int, rho: float, g: torch.Generator) -> list[Tensor]:
    """Unit vectors whose cosine with r is ρ."""
    r = r / r.norm()
    vectors = []
    for _ in range(count):
        noise = torch.randn(len(r), generator=g)
        noise = noise - (noise @ r) * r
        vectors.append(rho * r + (1 - rho**2) ** 0.5 * noise / noise.norm())
    return vectors


def make_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    x = normal(ROWS, INPUTS)
    w1, w2 = (normal(INPUTS, LATENT) / INPUTS**0.5 for _ in range(2))
    z = torch.tanh(x @ w1) + 0.5 * torch.sin(x @ w2)
    z = z / z.std(0)
    d = correlated(normal(LATENT), 9, 0.3, g)

    regression = 1.25 * z @ d[0] + 0.2 * normal(ROWS)
    robust = 0.9 * z @ d[1] + 0.08 * normal(ROWS)
    robust = robust + 1.75 * (torch.rand(ROWS, generator=g) < 0.08) * 0.18 * normal(ROWS)
    binary = torch.bernoulli(torch.sigmoid(z @ d[2] + 0.35 * z[:, 0].sign()), generator=g)
    binary = torch.where(torch.rand(ROWS, generator=g) < FLIP, 1 - binary, binary)
    directions = torch.stack([d[3], *correlated(d[4], CLASSES - 1, 0.15, g)])
    classes = (1.2 * z @ directions.T + 0.15 * z[:, :CLASSES]).argmax(1)
    replaced = torch.rand(ROWS, generator=g) < FLIP
    classes = torch.where(replaced, torch.randint(CLASSES, (ROWS,), generator=g), classes)
    direction = F.normalize(torch.stack([z @ d[5], z @ d[6], z @ d[7]], 1) + 0.08 * normal(ROWS, 3), dim=1)

    order = torch.randperm(ROWS, generator=g)
    parts = [order[: round(0.8 * ROWS)], order[round(0.8 * ROWS) :]]
    train, held_out = (
        TensorDataset(*(t[p] for t in (x, regression, robust, binary, classes, direction))) for p in parts
    )
    return train, held_out


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(INPUTS, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(64, width) for width in WIDTHS)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [head(features).squeeze(-1) for head in self.heads]


def angle(prediction: Tensor, truth: Tensor) -> Tensor:
    return F.cosine_similarity(prediction, truth).clamp(-1 + 1e-6, 1 - 1e-6).arccos()


def task_losses(out: Sequence[Tensor], y: Sequence[Tensor]) -> list[Tensor]:
    return [
        F.mse_loss(out[0], y[0]),
        F.smooth_l1_loss(out[1], y[1]),
        F.binary_cross_entropy_with_logits(out[2], y[2]),
        F.cross_entropy(out[3], y[3]),
        angle(out[4], y[4]).mean(),
    ]


def r2(prediction: Tensor, truth: Tensor) -> float:
    residual = (truth - prediction).square().sum() / (truth - truth.mean()).square().sum()
    return float((1 - residual).clamp(-1, 1))


def f1(prediction: Tensor, truth: Tensor) -> float:
    hits = (prediction & truth).sum()
    return float(2 * hits / (prediction.sum() + truth.sum()).clamp_min(1))


@torch.no_grad()
def macro_score(network: Network, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """The mean over tasks of R², R², F1, macro-F1 and 1 − angle/π on held-out rows."""
    batches = [(network(x), y) for x, *y in loader]
    out = [torch.cat([o[i] for o, _ in batches]) for i in range(5)]
    y = [torch.cat([t[i] for _, t in batches]) for i in range(5)]
    chosen = out[3].argmax(1)
    present = [c for c in range(CLASSES) if ((chosen == c) | (y[3] == c)).any()]
    return statistics.mean(
        [
            r2(out[0], y[0]),
            r2(out[1], y[1]),
            f1(out[2] >= 0, y[2].bool()),
            statistics.mean(f1(chosen == c, y[3] == c) for c in present),
            1 - float(angle(out[4], y[4]).mean()) / torch.pi,
        ]
    )


def run(build: Callable[[], cp.Balancer], scale: float, seed: int, epochs: int) -> float:
    train, held_out = make_data(seed)
    torch.manual_seed(seed)
    network, balancer = Network(), build()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
    own = list(balancer.parameters())
    # As the authors had it: θ in an optimiser of its own without decay, Kendall's s with the network's decay.
    decay = 0.0 if isinstance(balancer, cp.BPGS) else 1e-4
    own_optimizer = torch.optim.Adam(own, lr=3e-3, weight_decay=decay) if own else None
    batches: DataLoader[tuple[Tensor, ...]] = DataLoader(train, batch_size=64, shuffle=True)
    evaluation: DataLoader[tuple[Tensor, ...]] = DataLoader(held_out, batch_size=64)
    score = 0.0
    for _ in range(epochs):
        for x, *y in batches:
            losses = task_losses(network(x), y)
            losses[0] = losses[0] * scale
            network.zero_grad()
            balancer.zero_grad()
            balancer(losses).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            if own_optimizer is not None:
                if isinstance(balancer, cp.BPGS):
                    nn.utils.clip_grad_norm_(own, 5.0)
                own_optimizer.step()
        score = macro_score(network, evaluation)
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    scales = (1, 10, 100, 1000)
    torch.set_num_threads(1)
    print(f"macro score, mean ± standard deviation over seeds {options.seeds}, {options.epochs} epochs")
    print(f"{'':<14}" + "".join(f"{f'×{scale}':>16}" for scale in scales))
    for name, build in METHODS.items():
        print(f"{name:<14}", end="", flush=True)
        for scale in scales:
            scores = [run(build, scale, seed, options.epochs) for seed in options.seeds]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            print(f"{f'{statistics.mean(scores):.3f} ± {spread:.3f}':>16}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
