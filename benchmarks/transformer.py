"""Measure what balancing adds to a training step of a transformer with a billion parameters and 16 tasks.

    python benchmarks/transformer.py [--out FOLDER]

Parameters and activations are in bfloat16, every block is checkpointed, and AdamW is fused. The tasks are regressions
on the mean of the tokens ("pooled") or classifications of every token ("tokens"). The reference is the plain sum, which
is measured twice: its second row shows the noise.
`--device cpu` measures a tiny network, to test the script.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import FOLDER, compare, device_work, save
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import counterpoise as cp

TASKS = 16
CLASSES = 32
BALANCERS: dict[str, Callable[[], cp.Balancer]] = {
    "BPGS": lambda: cp.BPGS(TASKS),
    "UW-O": lambda: cp.UWO(TASKS),
    "UPGrad, features": lambda: cp.UPGrad(TASKS),
    "PCGrad, features": lambda: cp.PCGrad(TASKS),
}


class Transformer(nn.Module):
    """Pre-norm blocks with checkpoints, and one linear head per task."""

    def __init__(self, width: int, depth: int, outputs: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(TASKS))

    def features(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        normed: Tensor = self.norm(x)
        return normed


class Problem:
    """A network, a batch, and training steps on it.

    Args:
        pooled: Whether the tasks are regressions on the mean of the tokens, or classifications of every token.
        device: "cuda", or "cpu" for a tiny network.
    """

    def __init__(self, pooled: bool, device: str) -> None:
        torch.manual_seed(0)
        width, depth, batch, tokens = (2048, 20, 8, 1024) if device == "cuda" else (64, 2, 2, 8)
        self.pooled = pooled
        with torch.device(device):
            self.net = Transformer(width, depth, 1 if pooled else CLASSES).to(torch.bfloat16)
            self.x = torch.randn(batch, tokens, width, dtype=torch.bfloat16)
            self.y = torch.randn(TASKS, batch) if pooled else torch.randint(CLASSES, (TASKS, batch * tokens))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, fused=True)

    def losses(self, z: Tensor) -> list[Tensor]:
        outputs = (head(z).float() for head in self.net.heads)
        if self.pooled:
            return [(out[:, 0] - y).square().mean() for out, y in zip(outputs, self.y, strict=True)]
        return [nn.functional.cross_entropy(out.flatten(0, 1), y) for out, y in zip(outputs, self.y, strict=True)]

    def make_step(self, balancer: cp.Balancer | None) -> Callable[[], None]:
        """Return a training step with a balancer, or on the plain sum."""
        optimizers: list[torch.optim.Optimizer] = [self.optimizer]
        if balancer is not None:
            balancer.to(self.x.device)
            if groups := balancer.param_groups():
                optimizers.append(torch.optim.AdamW(groups, fused=True))

        def step() -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            z = self.net.features(self.x)
            z = z.mean(1) if self.pooled else z
            losses = self.losses(z)
            if isinstance(balancer, cp.Aggregation):
                balancer.backward(losses, features=z)
            elif balancer is not None:
                balancer.backward(losses)
            else:
                torch.stack(losses).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

        return step


def rows(pooled: bool, device: str) -> list[dict[str, Any]]:
    """Return the rows of one kind of tasks."""
    found = []
    problem = Problem(pooled, device)
    cases = {"plain step": problem.make_step(None), "plain step, again": problem.make_step(None)}
    cases |= {name: problem.make_step(build()) for name, build in BALANCERS.items()}
    times = compare(cases, rounds=9, seconds=0.0, warm_up=3, wait=device == "cuda")
    for name, (seconds, ratio) in times.items():
        row: dict[str, Any] = {"tasks": "pooled" if pooled else "tokens", "case": name}
        row |= {"ms": 1e3 * seconds, "ratio": ratio}
        row["parameters"] = sum(parameter.numel() for parameter in problem.net.parameters())
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            row["kernels"], busy = device_work(cases[name])
            row["device ms"] = 1e3 * busy
            row["peak MB"] = round(torch.cuda.max_memory_allocated() / 2**20)
        print(row, flush=True)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("transformer.py: skipped, because there is no CUDA device")
        return
    found: list[dict[str, Any]] = []
    for pooled in (True, False):
        found += rows(pooled, options.device)
        save(f"transformer_{options.device}", found, options.out)


if __name__ == "__main__":
    main()
