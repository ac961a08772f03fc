"""Problems whose ailment is known: what the doctor for losses is calibrated and tested on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import counterpoise as cp

from .engine import Run, recipe, spec
from .engine.workload import SyntheticWorkload
from .studies.base import AUTHORS

Losses = Callable[[], Tensor]


@dataclass
class DiagnosticProblem:
    """Losses (T,) of one batch after another, and what the tasks share."""

    batches: Iterator[Losses]
    parameters: list[nn.Parameter]
    shared: list[nn.Parameter]


def synthetic(problem: str, seed: int, **options: object) -> DiagnosticProblem:
    """A problem of the synthetic studies, trained on for ever."""
    run = Run("doctor", spec(problem, **options), spec("mlp", hidden=64), recipe("static"), seed, AUTHORS, "cpu")
    work = SyntheticWorkload([run])

    def batches() -> Iterator[Losses]:
        while True:
            for batch in work.batches():
                yield lambda batch=batch: work.losses(batch)[0]  # type: ignore[misc]

    return DiagnosticProblem(batches(), list(work.model.parameters()), work.model.trunk_parameters())


def opposed_tasks(seed: int, factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> DiagnosticProblem:
    """Four tasks with one head between them that want opposite signs: nobody can have what the others have.

    With a head for each task nothing would oppose: a linear head absorbs a sign. That is why the paper's "conflict"
    regime is none for the gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 16, generator=generator)
    wish = torch.tanh(x @ torch.randn(16, 1, generator=generator) / 4)
    y = wish * torch.tensor([1.0, -1.0, 1.0, -1.0]) + 0.1 * torch.randn(1024, 4, generator=generator)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    scale = torch.tensor(factors)

    def batches() -> Iterator[Losses]:
        while True:
            for rows in torch.randperm(1024, generator=generator).split(64):
                yield lambda rows=rows: (network(x[rows]) - y[rows]).square().mean(0) * scale  # type: ignore[misc]

    return DiagnosticProblem(batches(), list(network.parameters()), list(network.parameters()))


def diagnose_problem(patient: DiagnosticProblem, steps: int = 100) -> cp.Diagnosis:
    """Trains with plain sums under the doctor's eyes."""
    optimizer = torch.optim.Adam(patient.parameters, lr=3e-3)
    tasks = len(next(patient.batches)())
    with cp.diagnose(tasks, shared=patient.shared) as monitor:
        for _, batch in zip(range(steps), patient.batches, strict=False):
            losses = monitor(batch())
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
    return monitor.diagnosis


LABELLED_PROBLEMS: dict[str, tuple[str, Callable[[int], DiagnosticProblem]]] = {
    "rescaling ×1": ("neither", lambda seed: synthetic("rescaling", seed, pattern="single", scale=1.0)),
    "scale stress ×1": ("neither", lambda seed: synthetic("scale-stress", seed, scale=1.0)),
    "rescaling ×1000, graded": ("scale", lambda seed: synthetic("rescaling", seed, pattern="graded", scale=1000.0)),
    "rescaling ×1000, single": ("scale", lambda seed: synthetic("rescaling", seed, pattern="single", scale=1000.0)),
    "tug of war": ("conflict", opposed_tasks),
    "tug of war, ×1000": ("both", lambda seed: opposed_tasks(seed, (1.0, 10.0, 100.0, 1000.0))),
}
"""Name → truth, and the problem at a seed."""

REGIME_PROBLEMS = {
    f"heterogeneous, {regime}": lambda seed, regime=regime: synthetic("heterogeneous", seed, regime=regime)
    for regime in ("clean", "noisy", "conflict", "opposed")
}
"""The regimes of the paper and ours: what their gradients say is looked up, not assumed."""
