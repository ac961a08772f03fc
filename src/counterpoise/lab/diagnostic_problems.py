"""Small problems with a known diagnosis, on which `counterpoise.diagnose` is calibrated and tested."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import counterpoise as cp

from .engine import Run, recipe, spec
from .engine.synthetic import SyntheticWorkload
from .studies.base import SYNTHETIC_SCHEDULE

LossFunction = Callable[[], Tensor]


@dataclass
class DiagnosticProblem:
    """A training problem: for each batch a function that computes the losses (T,), and the parameters."""

    batches: Iterator[LossFunction]
    parameters: list[nn.Parameter]
    shared: list[nn.Parameter]


def synthetic_problem(problem: str, seed: int, **options: object) -> DiagnosticProblem:
    """Return a problem of the synthetic studies with an endless sequence of batches."""
    data, model = spec(problem, **options), spec("mlp", hidden=64)
    run = Run("diagnose", data, model, recipe("static"), seed, SYNTHETIC_SCHEDULE, "cpu")
    workload = SyntheticWorkload([run])

    def batches() -> Iterator[LossFunction]:
        while True:
            for batch in workload.batches():
                yield lambda batch=batch: workload.losses(batch)[0]  # type: ignore[misc]

    return DiagnosticProblem(batches(), list(workload.model.parameters()), workload.model.trunk_parameters())


def opposed_tasks(seed: int, factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> DiagnosticProblem:
    """Return four tasks that share one head and have targets of opposite signs, so that their gradients conflict.

    With one head per task there would be no conflict, because a linear head absorbs a sign. For the same reason the
    gradients of the paper's "conflict" regime do not conflict.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 16, generator=generator)
    target = torch.tanh(x @ torch.randn(16, 1, generator=generator) / 4)
    y = target * torch.tensor([1.0, -1.0, 1.0, -1.0]) + 0.1 * torch.randn(1024, 4, generator=generator)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    scale = torch.tensor(factors)

    def batches() -> Iterator[LossFunction]:
        while True:
            for rows in torch.randperm(1024, generator=generator).split(64):
                yield lambda rows=rows: (network(x[rows]) - y[rows]).square().mean(0) * scale  # type: ignore[misc]

    return DiagnosticProblem(batches(), list(network.parameters()), list(network.parameters()))


def diagnose_problem(problem: DiagnosticProblem, steps: int = 100) -> cp.Diagnosis:
    """Train a problem with the plain sum of its losses, and return the diagnosis."""
    optimizer = torch.optim.Adam(problem.parameters, lr=3e-3)
    tasks = len(next(problem.batches)())
    with cp.diagnose(tasks, shared=problem.shared) as monitor:
        for _, batch in zip(range(steps), problem.batches, strict=False):
            losses = monitor(batch())
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
    return monitor.diagnosis


LABELLED_PROBLEMS: dict[str, tuple[str, Callable[[int], DiagnosticProblem]]] = {
    "rescaling ×1": ("neither", lambda seed: synthetic_problem("rescaling", seed, pattern="single", scale=1.0)),
    "scale stress ×1": ("neither", lambda seed: synthetic_problem("scale-stress", seed, scale=1.0)),
    "rescaling ×1000, graded": (
        "scale",
        lambda seed: synthetic_problem("rescaling", seed, pattern="graded", scale=1000.0),
    ),
    "rescaling ×1000, single": (
        "scale",
        lambda seed: synthetic_problem("rescaling", seed, pattern="single", scale=1000.0),
    ),
    "opposed tasks": ("conflict", opposed_tasks),
    "opposed tasks, ×1000": ("both", lambda seed: opposed_tasks(seed, (1.0, 10.0, 100.0, 1000.0))),
}
"""Name → expected verdict, and a function that builds the problem for a seed."""

REGIME_PROBLEMS = {
    f"heterogeneous, {regime}": lambda seed, regime=regime: synthetic_problem("heterogeneous", seed, regime=regime)
    for regime in ("clean", "noisy", "conflict", "opposed")
}
"""The regimes of the heterogeneous study, whose verdict is not known in advance."""
