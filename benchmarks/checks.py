"""Measure what the checks behind `BalanceWarning` cost in a step on a bare loss vector.

    python benchmarks/checks.py [--out FOLDER] [--busy]

The same balancer with and without its checks, forward and backward, on the CPU with one thread and on CUDA where there
is a device. A ratio of 1.01 means that the checks take 1 % of the step.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from loss_space import make_step, random_losses
from timing import FOLDER, compare, measure_cpu_time, save

import counterpoise as cp

METHODS = ("bpgs", "static", "kendall", "uw-o")


def rows(device: str) -> list[dict[str, Any]]:
    found = []
    for tasks in (3, 14, 64):
        for method in METHODS:
            steps = {}
            for case in ("without checks", "with checks"):
                balancer = cp.make(method, tasks).to(device)
                if case == "without checks":
                    balancer._checks.next_look = 1 << 60
                steps[case] = make_step(balancer, random_losses(tasks, device))
            times = compare(steps, rounds=101, seconds=0.02, warm_up=50)
            found.append({"device": device, "method": method, "T": tasks, "ratio": times["with checks"][1]})
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--busy", action="store_true", help="measure the CPU time of one thread, not the wall time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.busy:
        measure_cpu_time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save(f"checks_{device}", rows(device), options.out)


if __name__ == "__main__":
    main()
