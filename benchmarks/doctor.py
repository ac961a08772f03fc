"""The doctor for losses: its thresholds on problems whose ailment is known, and what watching costs.

    python benchmarks/doctor.py

Each problem is trained with plain sums at ten seeds, and every verdict counted. The thresholds in
counterpoise/doctor/findings.py lie between the numbers printed here.
"""

from collections.abc import Callable
from typing import Any

import torch
from timing import FOLDER, compare, save

import counterpoise as cp
from counterpoise.lab.diagnostic_problems import KNOWN, REGIMES, examine

SEEDS = range(42, 52)


def calibrate() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, (truth, make) in {**KNOWN, **{name: ("", make) for name, make in REGIMES.items()}}.items():
        found = [examine(make(seed)) for seed in SEEDS]
        spreads = [d.spread for d in found]
        shares = [d.conflict or 0.0 for d in found]
        verdicts = [d.verdict for d in found]
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


def cost() -> float:
    """A watched step of the smallest network of the studies against a plain one: larger networks hide the cost."""

    def step(watched: bool) -> Callable[[], object]:
        patient = KNOWN["rescaling ×1"][1](42)
        optimizer = torch.optim.Adam(patient.parameters, lr=3e-3)
        balancer = cp.BPGS(5)
        monitor = cp.diagnose(balancer)
        if watched:
            monitor.__enter__()

        def once() -> None:
            loss = balancer(next(patient.batches)())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if watched and len(monitor._losses) > 1000:
                monitor._losses.clear()

        return once

    found = compare({"plain": step(False), "watched": step(True)}, rounds=9, seconds=0.3)
    return found["watched"][1]


def main() -> None:
    torch.set_num_threads(1)
    save("doctor_problems", calibrate(), FOLDER)
    ratio = cost()
    save("doctor_cost", [{"case": "a watched step of the small network", "ratio": ratio}], FOLDER)
    print(f"a watched step takes {ratio:.3f} of a plain one")


if __name__ == "__main__":
    main()
