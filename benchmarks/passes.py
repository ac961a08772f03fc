"""Measure how to compute task gradients: in a loop or in one batched pass, with and without `features`.

    python benchmarks/passes.py [cpu|cuda]

The networks are small, because `passes="auto"` decides between the two there. Ratios are to the loop without features.
"""

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from timing import FOLDER, compare, save
from torch import nn

import counterpoise as cp

SIZES = ((64, 2, 5, 64), (64, 2, 8, 64), (256, 4, 3, 128), (256, 4, 14, 128), (512, 4, 8, 128), (512, 4, 8, 512))
"""Width, depth, number of tasks and batch size."""


def make_step(
    width: int, depth: int, tasks: int, batch: int, device: str, passes: Literal["loop", "batched"], through: bool
) -> Callable[[], object]:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    trunk, heads = nn.Sequential(*layers).to(device), [nn.Linear(width, 1).to(device) for _ in range(tasks)]
    balancer, x = cp.IMTLG(tasks, passes=passes).to(device), torch.randn(batch, width, device=device)

    def step() -> None:
        z = trunk(x)
        losses = [head(z).square().mean() for head in heads]
        for module in (trunk, *heads):
            module.zero_grad()
        balancer.backward(losses, shared=trunk.parameters(), features=z if through else None)

    return step


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(2)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        cases = {
            f"{passes}{', through features' if through else ''}": make_step(*size, device, passes, through)
            for passes in ("loop", "batched")
            for through in (False, True)
        }
        times = compare(cases, rounds=7, seconds=0.1, warm_up=3, wait=device == "cuda")
        ratios = {case: round(ratio, 3) for case, (_, ratio) in times.items()}
        rows.append(dict(zip(("width", "depth", "T", "batch"), size, strict=True)) | {"ratios": ratios})
        print(rows[-1], flush=True)
    save(f"passes_{device}", rows, FOLDER)


if __name__ == "__main__":
    main()
