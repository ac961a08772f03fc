"""What the trainers of stacks of runs share: balancers, optimisers, steps as CUDA graphs, checkpoints."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...weighting._gradients import Schedule as MeasurementSchedule
from .balancer_groups import BalancerGroups
from .config import Run
from .cuda_graphs import Branches, CudaGraphStep
from .optim import network_optimizer

Pattern = tuple[bool, ...]
"""Which of the balancers' schedules measure gradients in a step, and possibly further variants of the step."""


class StackTrainer:
    """Base class of trainers whose runs may mix methods of all spaces.

    On CUDA, steps are replayed as a CUDA graph; COUNTERPOISE_GRAPH=0 disables this. A subclass implements `step`.

    Args:
        runs: the runs, those with the same method side by side.
        workload: the networks and their data. `workload.network.layers()` are the parameters.
    """

    workload: Any

    def __init__(self, runs: Sequence[Run], workload: Any) -> None:
        first, device = runs[0], runs[0].device
        self.runs, self.schedule, self.device, self.workload = list(runs), first.schedule, device, workload
        self.balancers = BalancerGroups(runs, workload.tasks, device, "loop")
        self.network = network_optimizer(workload.network.layers(), runs, capturable=True)
        self.optimizers = [(slice(None), self.network), *self.balancers.optimizers(capturable=True)]
        self.epoch = self.steps = 0
        self.history: list[list[dict[str, Any]]] = [[] for _ in runs]
        # The step reads and writes its tensors in place, so that a CUDA graph can replay it.
        self.log = torch.zeros(2, len(runs), len(workload.tasks), device=device)
        self.schedules = [module for module in self.balancers.modules() if isinstance(module, MeasurementSchedule)]
        self.programs: dict[Pattern, Callable[[], None]] = {}

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs

    def step(self, due: Pattern) -> None:
        """Train on the next batch.

        Args:
            due: for each of `schedules`, whether its balancer measures the gradients of the tasks in this step, and
                then the `variants` of the step. A CUDA graph sees no numbers of Python, such as the counters of the
                schedules, so there is a graph for every such pattern.
        """
        raise NotImplementedError

    def variants(self) -> Pattern:
        """Return choices that determine the shapes of the next step."""
        return ()

    def advance(self) -> None:
        """Run the next step, on CUDA as a replay of the graph for its pattern."""
        due = (*(self.steps % schedule.every == 0 for schedule in self.schedules), *self.variants())
        if due not in self.programs:
            self.programs[due] = self._captured(partial(self.step, due))
        self.programs[due]()
        self.steps += 1

    def _captured(self, step: Callable[[], None]) -> Callable[[], None]:
        graphs = torch.device(self.device).type == "cuda" and os.environ.get("COUNTERPOISE_GRAPH") != "0"
        return CudaGraphStep(step, lambda: None) if graphs else step

    @contextmanager
    def _measuring(self, due: Pattern) -> Iterator[None]:
        """Hold the schedules of the balancers at what is due in this step."""
        with ExitStack() as held:
            for schedule, measures in zip(self.schedules, due, strict=False):
                held.enter_context(schedule.hold(measures))
            yield

    @torch.no_grad()
    def _update(self, losses: Tensor, direction: Tensor, factors: Sequence[Tensor]) -> None:
        """Log a step and take it with all optimisers.

        Args:
            losses: the losses, (R, T).
            direction: the gradient of the network, (R, P).
            factors: for each optimiser the factor of its learning rates.
        """
        self.network.set_gradient(direction)
        for _, optimizer in self.optimizers[1:]:
            optimizer.gather_gradients()
        for total, values in zip(self.log, (losses, self.balancers.weights(losses)), strict=True):
            total += values
        branches = Branches(losses.device)
        for (_, optimizer), factor in zip(self.optimizers, factors, strict=True):
            with branches.next():
                optimizer.step(factor)
        branches.join()

    def pictures(self) -> list[dict[str, bytes]]:
        """Return no pictures: these runs predict no images."""
        return [{} for _ in self.runs]

    def state_dict(self) -> dict[str, Any]:
        for schedule in self.schedules:
            schedule.steps = self.steps  # held schedules do not count
        return {
            "epoch": self.epoch,
            "history": self.history,
            "steps": self.steps,
            "groups": [optimizer.state_dict() for _, optimizer in self.optimizers],
            "sections": self.balancers.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.history, self.steps = (state[name] for name in ("epoch", "history", "steps"))
        self.balancers.load_state_dict(state["sections"])
        for (_, optimizer), saved in zip(self.optimizers, state["groups"], strict=True):
            optimizer.load_state_dict(saved)
        self.programs = {}  # captured graphs would use the old tensors of the balancers


def rounded(values: Sequence[float], digits: int = 6) -> list[float]:
    """Round to few significant digits, which keeps archives of many runs small."""
    return [float(f"{value:.{digits}g}") for value in values]
