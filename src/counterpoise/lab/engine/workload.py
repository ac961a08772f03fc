"""What the trainer trains: the data and the networks of a stack of runs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data import PROBLEMS, Dataset, training_factors
from ..metrics import TASK_TYPES
from ..metrics.task_types import wide
from ..models import StackedMLP
from .config import Run

Batch = Any


class Workload(ABC):
    """R networks on their R data sets, seen as one: every loss and score has a leading R.

    A parameter has the shape (R, …), or any shape where R is 1: so a network that cannot be stacked trains alone
    through the same trainer.
    """

    tasks: tuple[str, ...]
    replicas: int
    network: nn.Module
    passes: Literal["auto", "batched"] = "auto"  # how gradient-space methods get task gradients
    metrics: tuple[str, ...] = ()  # what `evaluate` measures besides, (R,) each

    @abstractmethod
    def __init__(self, runs: Sequence[Run]) -> None:
        """Loads the data and builds the networks of a stack of runs."""

    @classmethod
    def shape(cls, run: Run) -> tuple[object, ...]:
        """What two runs must have in common besides network and schedule to be trained together."""
        return (run.data.name,)

    @classmethod
    def crowd(cls, run: Run) -> int | None:
        """The most runs worth stacking on a CPU; None: as many as is usual."""
        return None

    @classmethod
    def burden(cls, run: Run) -> int:
        """How long an epoch takes, compared with other runs of the workload."""
        return 1

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many batches an epoch has."""

    @abstractmethod
    def shared_parameters(self) -> list[nn.Parameter]:
        """The parameters that all tasks share."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """One epoch, each replica in an order of its own."""

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """The training losses (R, T) of a batch."""

    @abstractmethod
    def evaluate(self) -> dict[str, Tensor]:
        """On held-out rows: "score" (R, T), higher is better, and "loss" (R, T).

        Also each of `metrics`; and "watched_loss" (R, T), where early stopping looks at rows that are not reported.
        """

    def decaying(self) -> list[bool] | None:
        """For each parameter of the network whether weight decay acts on it; None: on all."""
        return None

    def kernels(self) -> AbstractContextManager[None]:
        """The setting of torch in which an epoch runs."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What changes besides parameters: random streams, running statistics."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SyntheticWorkload(Workload):
    """A stack of small networks on rows in memory: the synthetic studies."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        problem = PROBLEMS[first.data.name]
        self.replicas, self.tasks = len(runs), tuple(task.name for task in problem.tasks)
        self.kinds = [TASK_TYPES[task.kind] for task in problem.tasks]
        self.schedule = first.schedule
        drawn: dict[tuple[int, str], Dataset] = {}
        sets = [_drawn(drawn, run) for run in runs]
        self.train = _stack(sets, "train", device)
        self.held_out = _stack(sets, "held_out", device)
        self.factors = torch.stack([training_factors(run.data.name, run.data.kwargs) for run in runs]).to(device)
        widths = [task.width for task in problem.tasks]
        seeds = [run.seed for run in runs]
        self.model = StackedMLP(seeds, sets[0].x.shape[1], widths, **first.model.kwargs).to(device)
        self.network = self.model
        self.rows = torch.arange(self.replicas, device=device).unsqueeze(1)

    @property
    def steps(self) -> int:
        count, size = self.train[0].shape[1], self.schedule.batch_size
        return count // size if self.schedule.drop_last else -(-count // size)

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) if self.schedule.shared == "all" else self.model.trunk_parameters()

    def batches(self) -> Iterator[list[Tensor]]:
        """The order in which a shuffling DataLoader on the global stream of a single run would give the rows."""
        order = torch.stack([shuffled(stream, self.train[0].shape[1]) for stream in self.model.streams])
        order = order.to(self.rows.device)
        mixed = [part[self.rows, order] for part in self.train]
        size = self.schedule.batch_size
        for step in range(self.steps):
            yield [part[:, step * size : (step + 1) * size] for part in mixed]

    def losses(self, batch: list[Tensor]) -> Tensor:
        return self._losses(batch) * self.factors

    def _losses(self, batch: list[Tensor]) -> Tensor:
        x, *targets = batch
        outputs = [wide(out) for out in self.model(x)]
        return torch.stack([k.loss(o, y) for k, o, y in zip(self.kinds, outputs, targets, strict=True)], 1)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        for stream in self.model.streams:
            draw_seed(stream)  # the pass over a validation loader takes a draw too
        x, *targets = self.held_out
        outputs = [wide(out) for out in self.model(x)]
        triples = list(zip(self.kinds, outputs, targets, strict=True))
        return {
            "score": torch.stack([kind.score(out, y) for kind, out, y in triples], 1),
            "loss": torch.stack([kind.loss(out, y) for kind, out, y in triples], 1),
        }

    def kernels(self) -> AbstractContextManager[None]:
        return plain_kernels()

    def state_dict(self) -> dict[str, Any]:
        return {"streams": [stream.get_state() for stream in self.model.streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, saved in zip(self.model.streams, state["streams"], strict=True):
            stream.set_state(saved)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Torch's own kernels: for matrices of 64 × 64 oneDNN's are up to 18 times slower."""
    settings: Any = torch.backends.mkldnn
    before, settings.enabled = settings.enabled, False
    try:
        yield
    finally:
        settings.enabled = before


def _drawn(drawn: dict[tuple[int, str], Dataset], run: Run) -> Dataset:
    """The run's data set; runs that differ in their loss factors alone share one."""
    options = {} if run.data.name == "rescaling" else run.data.kwargs
    key = (run.seed, repr(options))
    if key not in drawn:
        drawn[key] = PROBLEMS[run.data.name].draw(run.seed, **options)
    return drawn[key]


def _stack(sets: Sequence[Dataset], part: str, device: str) -> list[Tensor]:
    """The inputs and every target of all replicas, (R, rows, …)."""
    columns = zip(*((s.x[getattr(s, part)], *(y[getattr(s, part)] for y in s.y)) for s in sets), strict=True)
    return [torch.stack(column).to(device) for column in columns]


def draw_seed(stream: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=stream).item())


def shuffled(stream: torch.Generator, rows: int) -> Tensor:
    """A DataLoader draws a seed for its workers first, then one for the generator that shuffles."""
    draw_seed(stream)
    return torch.randperm(rows, generator=torch.Generator().manual_seed(draw_seed(stream)))


WORKLOADS: dict[str, type[Workload]] = dict.fromkeys(PROBLEMS, SyntheticWorkload)
"""Who trains on which problem; further problems enter themselves here."""
