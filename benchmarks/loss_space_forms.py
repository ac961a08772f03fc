"""Measure the step of every loss-space method on bare losses, relative to the sum of the stacked losses.

    python benchmarks/loss_space_forms.py [--device cpu] [--tasks 3 14 64] [--out FOLDER]

Forward and backward in eager mode, with the losses as a tensor, a list or a dictionary. The reference is
`torch.stack(losses).sum().backward()`; with a tensor, the balancer gets `torch.stack(losses)`. The CPU is measured with
one thread. On CUDA nothing waits for the device.

On the CPU, the row `floor` is the smallest module that returns a weighted sum of known weights with an exact value: it
reads the losses, builds the vector of weights, connects the two by an inner product, and sets the value. It checks
nothing, has no state and records nothing. `floor, learned` also gives a parameter its gradient.
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

    def __init__(self, tasks: list[str], learned: bool) -> None:
        super().__init__()
        self.tasks, self.weights = tasks, [1.0] * len(tasks)
        self.learned = nn.Parameter(torch.ones(len(tasks))) if learned else None

    def forward(self, losses: Any) -> Tensor:
        if isinstance(losses, Tensor):
            vector = losses
        else:
            vector = torch.stack([losses[task] for task in self.tasks] if isinstance(losses, dict) else losses)
        value = sum(map(mul, self.weights, vector.tolist()))
        derivatives, learned = self.weights, self.learned
        if learned is not None:
            vector, derivatives = torch.cat((vector, learned)), derivatives + derivatives
        objective = vector.dot(torch.frombuffer(array("f", derivatives), dtype=torch.float32))
        objective.data = torch.scalar_tensor(value)
        return objective


def make_step(method: str, losses: dict[str, Tensor], form: str) -> Callable[[], object]:
    """Return a step with the losses in one of the forms."""
    options = {"accumulation": 1 << 40} if method == "famo" else {}
    balancer: Any
    if method in FLOORS:
        balancer = Floor(list(losses), FLOORS[method])
    else:
        balancer = cp.make(method, list(losses), **options).to(next(iter(losses.values())).device)
    if method in ("dwa", "stch"):
        balancer.max_epoch_steps = None
    convert = FORMS[form]
    return lambda: balancer(convert(losses)).backward()


def rows(device: str, sizes: list[int]) -> list[dict[str, Any]]:
    found = []
    for tasks in sizes:
        losses = {f"task {i}": torch.rand((), device=device, requires_grad=True) for i in range(tasks)}
        stacked_sum = {"sum": lambda losses=losses: torch.stack(list(losses.values())).sum().backward()}
        methods = [method for method in cp.methods("loss") if method not in SKIPPED]
        for method in methods if device == "cuda" else [*FLOORS, *methods]:
            steps = {form: make_step(method, losses, form) for form in FORMS}
            times = compare(stacked_sum | steps, rounds=9, seconds=0.02, warm_up=40)
            row: dict[str, Any] = {"device": device, "method": method, "T": tasks}
            row |= {form: times[form][1] for form in FORMS} | {"us": 1e6 * times["sum"][0]}
            if device == "cuda":
                row["kernels"] = device_work(steps["dictionary"])[0] - device_work(stacked_sum["sum"])[0]
            found.append(row)
            print(
                {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 14, 64])
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    torch.set_num_threads(1)
    save(f"loss_space_forms_{options.device}", rows(options.device, options.tasks), options.out)


if __name__ == "__main__":
    main()
