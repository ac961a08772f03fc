"""Train physics-informed networks with the approximate solvers of public codes for CAGrad and MGDA.

python benchmarks/inexact_solvers.py pinn-klein-gordon --interior 128 --seeds 5-7 --save benchmarks/results

The solvers of this library are exact to rounding. CAGrad's own code calls SLSQP with its default tolerances, and MGDA's
an iteration whose weights of two gradients are at least 0.001. docs/pinns.md compares both with published errors.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from pinn_stack import make_runs
from scipy.optimize import minimize
from timing import save
from torch import Tensor

from counterpoise.lab.engine.pinn import PinnTrainer
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.select import parse_seeds

Array = NDArray[np.float64]
SMALL = 1e-8  # added to squared norms and norms, as in CAGrad's code
LEAST = 0.001  # weight of a gradient where the shortest combination of two is the other one
ITERATIONS, CHANGE = 250, 1e-5


def cagrad_by_slsqp(gram: Array, alpha: float = 0.4) -> Array:
    """Return the weights of CAGrad as its authors' code computes them, without its common factor."""
    count = len(gram)
    mean = np.full(count, 1 / count)
    radius = alpha * np.sqrt(gram.mean() + SMALL) + SMALL
    found = minimize(
        lambda x: x @ gram @ mean + radius * np.sqrt(x @ gram @ x + SMALL),
        mean,
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda x: 1 - x.sum()},
    ).x
    weights: Array = mean + radius / (np.sqrt(found @ gram @ found + SMALL) + SMALL) * found
    return weights


def mgda_by_iteration(gram: Array) -> Array:
    """Return the weights of MGDA after the iteration of Sener and Koltun's code."""
    count = len(gram)
    pairs = [(i, j, *_shortest(gram[i, i], gram[i, j], gram[j, j])) for i in range(count) for j in range(i)]
    i, j, share, _ = min(pairs, key=lambda pair: pair[3])
    weights: Array = share * np.eye(count)[i] + (1 - share) * np.eye(count)[j]
    for _ in range(ITERATIONS if count > 2 else 0):
        target = _project(weights + _longest_step(weights, -gram @ weights))
        products = gram @ target
        share, _ = _shortest(*(float(x) for x in (weights @ gram @ weights, weights @ products, target @ products)))
        before, weights = weights, share * weights + (1 - share) * target
        if np.abs(weights - before).sum() < CHANGE:
            break
    return weights


def _shortest(first: float, both: float, second: float) -> tuple[float, float]:
    """Return the share of the first of two vectors in their shortest combination, and its squared norm."""
    if both >= first:
        return 1 - LEAST, first
    if both >= second:
        return LEAST, second
    share = (second - both) / (first + second - 2 * both)
    return share, second + share * (both - second)


def _longest_step(weights: Array, direction: Array) -> Array:
    """Return the step along a direction in the plane of the simplex until a weight reaches 0 or 1."""
    direction = direction - direction.mean()
    limits = np.where(direction < 0, -weights, 1 - weights)[direction != 0] / direction[direction != 0]
    limits = limits[limits > 1e-7]
    return direction * (limits.min() if len(limits) else 1.0)


def _project(point: Array) -> Array:
    """Project a point onto the simplex."""
    ordered = np.sort(point)[::-1]
    shifts = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    projected: Array = np.maximum(point - shifts[ordered > shifts][-1], 0)
    return projected


SOLVERS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "CAGrad": ("counterpoise.aggregation.cagrad.cagrad_weights", cagrad_by_slsqp),
    "MGDA": ("counterpoise.aggregation.mgda._solve_normalised", mgda_by_iteration),
}
"""Method → the function that is replaced, and what replaces it."""


def train(study: str, method: str, interior: int, seeds: list[int]) -> dict[str, Any]:
    """Train runs of a method with its approximate solver, and return their errors."""
    torch.set_num_threads(1)
    place, solve = SOLVERS[method]

    def solve_each(gram: Tensor, **_: object) -> Tensor:
        matrices = gram.double().reshape(-1, *gram.shape[-2:]).numpy()
        return torch.from_numpy(np.stack([solve(matrix) for matrix in matrices])).to(gram).view(gram.shape[:-1])

    runs = make_runs(study, {method: STUDIES[study].methods[method]}, len(seeds), "cpu", interior=interior)
    trainer = PinnTrainer([replace(run, seed=seed) for run, seed in zip(runs, seeds, strict=True)])
    started = time.monotonic()
    with mock.patch(place, solve_each):
        while not trainer.done:
            trainer.train_epoch()
            if trainer.epoch % 5 == 0:
                print(f"{method}, epoch {trainer.epoch}: {trainer.latest_value:.4f}", flush=True)
    errors = [result["metrics"]["rel_l2"] for result in trainer.results()]
    minutes = (time.monotonic() - started) / 60
    return {"study": study, "method": method, "interior": interior, "seeds": seeds, "errors": errors, "min": minutes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--methods", default=",".join(SOLVERS))
    parser.add_argument("--interior", type=int, default=1280, help="number of points inside")
    parser.add_argument("--seeds", default="5-7")
    parser.add_argument("--save", type=Path, help="folder of the results")
    options = parser.parse_args()
    seeds = parse_seeds(options.seeds, STUDIES[options.study])
    assert seeds
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(train, options.study, m, options.interior, seeds) for m in options.methods.split(",")]
        rows = [job.result() for job in jobs]
    for row in rows:
        sd = statistics.stdev(row["errors"]) if len(seeds) > 1 else float("nan")
        print(f"{row['method']}: {statistics.mean(row['errors']):.4f} ± {sd:.4f}, {row['min']:.0f} min")
    if options.save:
        save(f"inexact_{options.study}_{options.interior}_cpu", rows, options.save)


if __name__ == "__main__":
    main()
