"""The interface between the trainer and the data and networks of a batch of runs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .config import Run

Batch = Any


class Workload(ABC):
    """R networks and their R data sets, trained as one: every loss and score has a leading dimension R.

    A parameter has the shape (R, …). If R is 1 it may have any shape, so a network without a replica dimension can be
    trained alone by the same trainer.
    """

    tasks: tuple[str, ...]
    replicas: int
    network: nn.Module
    passes: Literal["auto", "batched"] = "auto"  # how gradient-space methods compute task gradients
    metrics: tuple[str, ...] = ()  # further metrics that `evaluate` returns, (R,) each

    @abstractmethod
    def __init__(self, runs: Sequence[Run]) -> None:
        """Load the data and build the networks of a batch of runs."""

    @classmethod
    def shape_key(cls, run: Run) -> tuple[object, ...]:
        """Return what two runs must share, besides network and schedule, to be trained together."""
        return (run.data.name,)

    @classmethod
    def max_replicas(cls, run: Run) -> int | None:
        """Return how many runs are worth training together on a CPU; None for the default."""
        return None

    @classmethod
    def relative_cost(cls, run: Run) -> int:
        """Return the duration of an epoch relative to other runs."""
        return 1

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of batches in an epoch."""

    @abstractmethod
    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that all tasks share."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield the batches of one epoch, in an independent order for each replica."""

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """Return the training losses (R, T) of a batch."""

    @abstractmethod
    def evaluate(self) -> dict[str, Tensor]:
        """Return "score" (R, T), higher is better, and "loss" (R, T) on the held-out rows.

        The result also has each of `metrics`, and "watched_loss" (R, T) if early stopping uses other rows than those
        that are reported.
        """

    def decay_mask(self) -> list[bool] | None:
        """Return for each parameter of the network whether weight decay applies to it; None if it applies to all."""
        return None

    def kernel_settings(self) -> AbstractContextManager[None]:
        """Return a context that sets the torch backends for an epoch."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all state except parameters: random streams, running statistics."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def draw_seed(stream: torch.Generator) -> int:
    """Draw a seed as a DataLoader does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=stream).item())


def shuffled_order(stream: torch.Generator, rows: int) -> Tensor:
    """Return the order in which a shuffling DataLoader that draws from `stream` yields its rows."""
    draw_seed(stream)  # the base seed of the DataLoader's workers
    return torch.randperm(rows, generator=torch.Generator().manual_seed(draw_seed(stream)))
