"""Measure cp.diagnose on problems with a known verdict, and the cost of monitoring a step.

    python benchmarks/diagnostics.py

Each problem is trained with plain sums at ten seeds, and the verdicts are counted. The thresholds in
counterpoise/diagnostics/advice.py separate the numbers printed here.
"""

from collections.abc import Callable
from typing import Any

import torch
from timing import FOLDER, compare, save

import counterpoise as cp
from counterpoise.lab.diagnostic_problems import LABELLED_PROBLEMS, REGIME_PROBLEMS, diagnose_problem

SEEDS = range(42, 52)


def measure_verdicts() -> list[dict[str, Any]]:
    """Return the measured spread, conflict and verdicts of each problem over all seeds."""
    rows: list[dict[str, Any]] = []
    unlabelled = {name: ("", make) for name, make in REGIME_PROBLEMS.items()}
    for name, (truth, make) in {**LABELLED_PROBLEMS, **unlabelled}.items():
        diagnoses = [diagnose_problem(make(seed)) for seed in SEEDS]
        spreads = [d.spread for d in diagnoses]
        shares = [d.conflict or 0.0 for d in diagnoses]
        verdicts = [d.verdict for d in diagnoses]
        rows.append(
            {
                "problem": name,
                "truth": truth,
                "decades": [round(min(spreads), 2), round(max(spreads), 2)],
                "conflicting": [round(min(shares), 3), round(max(shares), 3)],
                "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
            }
        )
        print(rows[-1], flush=True)
    return rows


def monitoring_cost() -> float:
    """Return the time of a monitored step relative to a plain one, on the smallest network of the studies."""

    def make_step(monitored: bool) -> Callable[[], object]:
        problem = LABELLED_PROBLEMS["rescaling ×1"][1](42)
        optimizer = torch.optim.Adam(problem.parameters, lr=3e-3)
        balancer = cp.BPGS(5)
        monitor = cp.diagnose(balancer)
        if monitored:
            monitor.__enter__()

        def step() -> None:
            loss = balancer(next(problem.batches)())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitored and len(monitor._losses) > 1000:
                monitor._losses.clear()
                monitor._weights.clear()

        return step

    times = compare({"plain": make_step(False), "monitored": make_step(True)}, rounds=9, seconds=0.3)
    return times["monitored"][1]


def main() -> None:
    torch.set_num_threads(1)
    save("diagnostics_problems", measure_verdicts(), FOLDER)
    ratio = monitoring_cost()
    save("diagnostics_cost", [{"case": "a monitored step of the small network", "ratio": ratio}], FOLDER)
    print(f"a monitored step takes {ratio:.3f} times as long as a plain one")


if __name__ == "__main__":
    main()
