"""Measure the step of every loss-space method on bare losses, relative to the sum of the stacked losses.

    python benchmarks/loss_space_forms.py [--device cpu] [--tasks 3 14 64] [--rounds 9] [--out FOLDER]

Forward and backward in eager mode, with the losses as a tensor, a list or a dictionary. The reference is
`torch.stack(losses).sum().backward()`; with a tensor, the balancer gets `torch.stack(losses)`. The CPU is measured with
one thread. On CUDA nothing waits for the device.

The row `floor` is the smallest module that returns a weighted sum of known weights with an exact value: it reads the
losses, builds the vector of weights, connects the two by an inner product, and sets the value. It checks nothing, has
no state and records nothing. On CUDA it does not read the losses, and its weights and its value are on the device.
`floor, learned` also gives a parameter its gradient.
"""

import argparse
from array import array
from collections.abc import Callable
from operator import mul
from pathlib import Path
from typing import Any

import torch
from timing import FOLDER, compare, device_work, save
from torch import Tensor, nn

import counterpoise as cp

SKIPPED = {"dtp"}  # needs indicators
FLOORS = {"floor": False, "floor, learned": True}  # whether the smallest module has a parameter
FORMS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "tensor": lambda losses: torch.stack(list(losses.values())),
    "list": lambda losses: list(losses.values()),
    "dictionary": lambda losses: losses,
}


class Floor(nn.Module):
    """The smallest module whose value and gradient are those of a weighted sum that Python computes."""

    def __init__(self, tasks: list[str], learned: bool, device: torch.device) -> None:
        super().__init__()
        self.tasks, self.weights = tasks, [1.0] * len(tasks)
        self.learned = nn.Parameter(torch.ones(len(tasks), device=device)) if learned else None
        self.on_device = torch.ones(len(tasks) * (1 + learned), device=device), torch.ones((), device=device)

    def forward(self, losses: Any) -> Tensor:
        if isinstance(losses, Tensor):
            vector = losses
        else:
            vector = torch.stack([losses[task] for task in self.tasks] if isinstance(losses, dict) else losses)
        learned, (derivatives, value) = self.learned, self.on_device
        if vector.is_cpu:
            value = torch.scalar_tensor(sum(map(mul, self.weights, vector.tolist())))
            weights = self.weights if learned is None else self.weights + self.weights
            derivatives = torch.frombuffer(array("f", weights), dtype=torch.float32)
        objective = (vector if learned is None else torch.cat((vector, learned))).dot(derivatives)
        objective.data = value
        return objective


def make_step(method: str, losses: dict[str, Tensor], form: str) -> Callable[[], object]:
    """Return a step with the losses in one of the forms."""
    options = {"accumulation": 1 << 40} if method == "famo" else {}
    device = next(iter(losses.values())).device
    balancer: Any
    if method in FLOORS:
        balancer = Floor(list(losses), FLOORS[method], device)
    else:
        balancer = cp.make(method, list(losses), **options).to(device)
    if method in ("dwa", "stch"):
        balancer.max_epoch_steps = None
    convert = FORMS[form]
    return lambda: balancer(convert(losses)).backward()


def rows(device: str, tasks: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of one number of tasks."""
    found = []
    losses = {f"task {i}": torch.rand((), device=device, requires_grad=True) for i in range(tasks)}
    stacked_sum = {"sum": lambda: torch.stack(list(losses.values())).sum().backward()}
    stacked_sum["sum"]()  # later calls add to the gradients
    kernels = device_work(stacked_sum["sum"])[0] if device == "cuda" else 0
    methods = [method for method in cp.methods("loss") if method not in SKIPPED]
    for method in [*FLOORS, *methods]:
        steps = {form: make_step(method, losses, form) for form in FORMS}
        times = compare(stacked_sum | steps, rounds=rounds, seconds=0.02, warm_up=30)
        row: dict[str, Any] = {"device": device, "method": method, "T": tasks}
        row |= {form: times[form][1] for form in FORMS} | {"us": 1e6 * times["sum"][0]}
        if device == "cuda":
            row["kernels"] = device_work(steps["dictionary"])[0] - kernels
        found.append(row)
        print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 14, 64])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for tasks in options.tasks:
        found += rows(options.device, tasks, options.rounds)
        save(f"loss_space_forms_{options.device}", found, options.out)


if __name__ == "__main__":
    main()
