"""Measure training steps with weights from gradient norms, renewed every ten steps, relative to plain steps.

    python benchmarks/gradient_scale.py [--out FOLDER]

On the CPU an MLP with 14 tasks is measured, on CUDA the SegNet with three. A case is ten steps, one of which renews the
norms.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradient_space import Problem, plain_step
from timing import FOLDER, compare, save
from torch import Tensor

import counterpoise as cp

METHODS = ("grad-normalise", "lra", "bpgs")


def ten(step: Callable[[], object]) -> Callable[[], None]:
    """Return a case of ten steps."""

    def case() -> None:
        for _ in range(10):
            step()

    return case


def balanced_step(problem: Problem, method: str, place: str) -> Callable[[], object]:
    """Return a training step whose gradient norms are taken on the shared parameters or at the features."""
    options: dict[str, Any] = {"statistic": "gradient"} if method == "bpgs" else {}
    balancer = cp.make(method, problem.tasks, every=10, **options).to(problem.x.device)
    for group in balancer.param_groups():
        problem.optimizer.add_param_group(group)
    shared = problem.shared

    def backward(losses: list[Tensor], z: Tensor) -> object:
        where: dict[str, Any] = {"shared": shared} if place == "shared" else {"features": z}
        return balancer.backward(losses, scaler=problem.scaler, **where)

    return lambda: problem.step(backward)


def rows(name: str, device: str, half: bool = False) -> list[dict[str, Any]]:
    """Compare every method in both places with ten plain steps."""
    cases = {"plain step": ten(plain_step(Problem(name, device, half)))}
    for method in METHODS:
        for place in ("shared", "features"):
            cases[f"{method}, {place}"] = ten(balanced_step(Problem(name, device, half), method, place))
    times = compare(cases, rounds=15, seconds=0.2, wait=device == "cuda", warm_up=2)
    precision = "fp16, channels last" if half else "float32"
    found = [
        {"net": name, "precision": precision, "case": case, "ms": 1e2 * seconds, "ratio": ratio}
        for case, (seconds, ratio) in times.items()
    ]
    for row in found:
        print(row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
        save("gradient_scale_cuda", rows("SegNet", "cuda") + rows("SegNet", "cuda", half=True), options.out)
    else:
        torch.set_num_threads(2)
        save("gradient_scale_cpu", rows("MLP", "cpu"), options.out)


if __name__ == "__main__":
    main()
