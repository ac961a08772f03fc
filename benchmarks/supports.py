"""Time Gram solvers on CUDA: a fixed number of rounds, all supports, and Newton's method as one kernel.

python benchmarks/supports.py

This decides up to how many tasks a device tries all supports (`ENUMERATED_CUDA_TASKS`) and uses the kernel
(`NEWTON_KERNEL_TASKS`).
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import FOLDER, compare, save
from torch import Tensor

import counterpoise.functional as f
from counterpoise.functional import _replay
from counterpoise.functional import _tolerances as tolerances

SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "MGDA": f.mgda_weights,
    "CAGrad": f.cagrad_weights,
    "UPGrad": f.upgrad_weights,
    "Nash-MTL": f.nash_weights,
    "FairGrad": partial(f.fairgrad_weights, alpha=2.0),
}
LIMITS = {"rounds": (0, 0), "all supports": (16, 0), "one kernel": (16, 16)}
"""Values of `ENUMERATED_CUDA_TASKS` and `NEWTON_KERNEL_TASKS` to compare."""
WITH_KERNEL = ("Nash-MTL", "FairGrad")


def rows() -> list[dict[str, Any]]:
    found = []
    for tasks in (4, 8, 10, 11, 12, 13, 14):
        generator = torch.Generator("cuda").manual_seed(tasks)
        gradients = torch.randn(1, tasks, 200, device="cuda", generator=generator)
        for name, solver in SOLVERS.items():
            solve = partial(solver, gradients @ gradients.mT)
            graphs = {}
            for case, (supports, kernel) in LIMITS.items():
                if kernel and name not in WITH_KERNEL:
                    continue
                limited = mock.patch.multiple(tolerances, ENUMERATED_CUDA_TASKS=supports, NEWTON_KERNEL_TASKS=kernel)
                with limited, mock.patch.object(_replay, "ENABLED", False):  # not the graph of another case
                    graphs[case] = _replay.capture(solve, warm_up=solve)[0]
            times = compare({case: graph.replay for case, graph in graphs.items()}, wait=True, rounds=5)
            found.append({"method": name, "T": tasks} | {case: 1e6 * time for case, (time, _) in times.items()})
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        print("supports.py: skipped, because there is no CUDA device")
        return
    save("supports_cuda", rows(), out)


if __name__ == "__main__":
    main()
