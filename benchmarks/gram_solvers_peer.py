"""Compare rules on small Gram matrices with torchjd on the CPU, one matrix at a time.

    python benchmarks/gram_solvers_peer.py [--tasks 3 8] [--out FOLDER]

Each call gets a different matrix. torchjd's ConFIG and both trimmed means take the gradients themselves. A ratio above
1 means that torchjd takes longer.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradient_space import Cycle
from timing import FOLDER, compare, save
from torch import Tensor
from torchjd import aggregation

from counterpoise import functional as f

Pair = tuple[Callable[[Any], object], Callable[[Any], object]]


class Smoothed:
    """Smooth constant weights, keeping the previous ones."""

    def __init__(self, tasks: int) -> None:
        self.weights, self.previous = torch.full((tasks,), 1 / tasks), torch.full((tasks,), torch.nan)

    def __call__(self, gram: Tensor) -> Tensor:
        self.previous = f.smooth_weights(self.previous, self.weights)
        return self.previous


class RunningPCD:
    """PCD with its running norms."""

    def __init__(self, tasks: int) -> None:
        self.mean, self.steps = torch.zeros(tasks), torch.zeros(tasks, dtype=torch.long)

    def __call__(self, gram: Tensor) -> Tensor:
        self.mean, self.steps = f.pcd_squared_norms(gram, self.mean, self.steps)
        return f.pcd_weights(gram, self.mean)


def pairs(tasks: int) -> dict[str, Pair]:
    """Return our function and torchjd's for each method."""
    lam = torch.full((tasks,), 1 / tasks)
    constant = aggregation.ConstantWeighting(lam)
    return {
        "ConFIG": (f.config_weights, aggregation.ConFIG()),
        "DualProj": (f.dualproj_weights, aggregation.DualProjWeighting()),
        "PCD": (RunningPCD(tasks), aggregation.PCDWeighting()),
        "MoDo": (lambda gram: f.modo_weights(lam, gram, gamma=0.1), aggregation.MoDoWeighting()),
        "CR-MOGM": (Smoothed(tasks), aggregation.CRMOGMWeighting(constant)),
        "Krum": (lambda gram: f.krum_weights(gram, byzantine=0), aggregation.KrumWeighting(n_byzantine=0)),
        "TrimmedMean": (lambda rows: f.trimmed_mean(rows, trim=1), aggregation.TrimmedMean(1)),
        "PIVRG / FairGrad": (lambda gram: f.pivrg_weights(gram, 100 * lam), aggregation.FairGradWeighting(alpha=2.0)),
    }


def rows(tasks: int) -> list[dict[str, Any]]:
    """Time both libraries on random gradients."""
    generator = torch.Generator().manual_seed(tasks)
    jacobians = [torch.randn(tasks, 100, generator=generator) for _ in range(16)]
    grams = [j @ j.T for j in jacobians]
    found = []
    for name, (ours, theirs) in pairs(tasks).items():
        cases = {
            "ours": Cycle(ours, jacobians if name == "TrimmedMean" else grams),
            "torchjd": Cycle(theirs, jacobians if name in ("ConFIG", "TrimmedMean") else grams),
        }
        times = compare(cases, rounds=7, warm_up=5)
        row = {"method": name, "T": tasks, "us": 1e6 * times["ours"][0], "torchjd us": 1e6 * times["torchjd"][0]}
        found.append(row | {"faster": times["torchjd"][1]})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    save("gram_solvers_peer", [row for tasks in options.tasks for row in rows(tasks)], options.out)


if __name__ == "__main__":
    main()
