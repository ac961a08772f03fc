"""Measure weights from gradient norms and write the table of gradient-scale.md, in about five minutes on a CPU.

python docs/gradient_scale_table.py
"""

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import counterpoise as cp

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "gradient-scale.md"
SEEDS = range(5)
MARKERS = re.compile(r"(<!-- measurements -->\n).*?(<!-- /measurements -->)", re.DOTALL)

Build = Callable[[list[str]], cp.Balancer]

# The first task is the residual of the equation, the reconstruction, …; the second has a trivial solution.
METHODS: dict[str, Build] = {
    "`cp.Static`": cp.Static,
    "`cp.Static`, second term × 100": lambda tasks: cp.Static(tasks, weights=[1.0, 100.0]),
    "`cp.LRA`": cp.LRA,
    '`cp.LRA(form="max-mean")`': lambda tasks: cp.LRA(tasks, form="max-mean"),
    "`cp.GradNormalise`": cp.GradNormalise,
    '`cp.BPGS(statistic="gradient")`': lambda tasks: cp.BPGS(tasks, statistic="gradient"),
    "`cp.PCGrad`": cp.PCGrad,
    "`cp.UPGrad`": cp.UPGrad,
    "`cp.CAGrad`": cp.CAGrad,
    "`cp.FirstLoss`": cp.FirstLoss,
    "`cp.BPGS`": cp.BPGS,
    "`cp.CoVWeighting`": cp.CoVWeighting,
    "`cp.ReLoBRaLo`": cp.ReLoBRaLo,
}
COLUMNS = {
    "PINN: error": ".5f",
    "Poisson: residual": ".3g",
    "Poisson: boundary": ".2g",
    "VAE: reconstruction": ".0f",
    "VAE: KL term": ".2g",
}
"""Title of each column and the format of its numbers."""


def measure(build: Build, seed: int) -> list[float]:
    """Return the numbers of `COLUMNS` for one method and one seed."""
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]
    import pinn
    from helpers.collapse import PROBLEMS, train

    found = [pinn.train(build(list(pinn.TASKS)), steps=400, seed=seed)]
    for name in ("poisson", "vae"):
        torch.manual_seed(seed)
        problem = PROBLEMS[name](seed=seed)
        train(problem, build(problem.tasks))
        found += [loss.item() for loss in problem.losses().values()]
    return found


def table(rows: dict[str, list[list[float]]]) -> str:
    """Return the table of the smallest and the largest number over the seeds, by method."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * len(COLUMNS)}"]
    for name, seeds in rows.items():
        columns = zip(COLUMNS.values(), zip(*seeds, strict=True), strict=True)
        cells = [f"{min(column):{spec}} – {max(column):{spec}}" for spec, column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)  # faster for small networks, and independent of the number of cores
    rows: dict[str, list[list[float]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cp.BalanceWarning)
        for name, build in METHODS.items():
            rows[name] = [measure(build, seed) for seed in SEEDS]
            print(name, *rows[name], sep="\n  ", flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKERS.sub(lambda found: f"{found[1]}{table(rows)}\n{found[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
