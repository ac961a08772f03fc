"""The workload of the studies of physics-informed networks: R networks on one differential equation."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..data.pde import EQUATIONS, GRID, Term
from ..models.pinn import Derivatives, StackedPINN, draw_uniform
from .config import Run
from .cuda_graphs import Branches

STEPS = 1000  # steps of an epoch, after which the learning rate is multiplied by 0.9
EVALUATION_POINTS = 2500  # points per forward pass in evaluation
MAX_CPU_RUNS = 4  # more networks in one batch do not fit in the caches of a core


@dataclass(frozen=True)
class NetworkPass:
    """Terms of one task that need the same derivatives, and are evaluated together."""

    task: int
    derivatives: Derivatives
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Placement:
    """Points as a function of uniform draws: coordinate i is factor[i] · draws[index[i]] + offset[i]."""

    draws: int  # the number of draws of a step
    index: Tensor
    factor: Tensor
    offset: Tensor
    sizes: list[int]  # the number of points of each pass


class PinnWorkload:
    """R networks that solve one differential equation, each with its own random points.

    Options of the data (`Run.data`):

    form: how the terms are grouped into losses; a key of `PDE.forms`.
    interior, boundary: the number of points inside and on each boundary, drawn anew in every step.
    steps: the steps of an epoch; 1,000 by default.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        options = first.data.kwargs
        self.equation = EQUATIONS[first.data.name]
        form = self.equation.forms[options["form"]]
        self.tasks, self.replicas = tuple(form), len(runs)
        self.steps = int(options.get("steps", STEPS))
        self.points = {True: int(options["interior"]), False: int(options["boundary"])}
        terms = {term.name: term for term in self.equation.terms}
        self.passes = [
            found for task, names in enumerate(form.values()) for found in _passes(task, [terms[n] for n in names])
        ]
        centre, spread = self.equation.standardisation()
        seeds = [run.seed for run in runs]
        kwargs: dict[str, Any] = first.model.kwargs
        self.network = StackedPINN(seeds, 2, centre=centre, spread=spread, **kwargs).to(device)
        self.seeds = torch.tensor(seeds, device=device)
        self.counter = torch.zeros((), dtype=torch.long, device=device)
        self.dtype = self.network.weights[0].dtype
        self.placement = self._placement()
        self.unpadded = self.network.unpadded_entries()
        self.grid, self.exact = (values.to(device, self.dtype) for values in _solution(first.data.name))

    @classmethod
    def shape_key(cls, run: Run) -> tuple[object, ...]:
        """Return what two runs must share to be trained together."""
        return (run.data,)

    @classmethod
    def max_replicas(cls, run: Run) -> int | None:
        """Return how many runs are worth training together on a CPU."""
        return MAX_CPU_RUNS

    @classmethod
    def relative_cost(cls, run: Run) -> int:
        """Return the duration of an epoch relative to other runs."""
        return int(run.data.kwargs["interior"])

    def _placement(self) -> Placement:
        """Return how the points of a step follow from its draws."""
        index, factor, offset, sizes, draws = [], [], [], [], 0
        for found in self.passes:
            sizes.append(0)
            for term in found.terms:
                count = self.points[term.drawn == 2]
                sizes[-1] += count
                ends = zip(self.equation.lower, self.equation.upper, term.fixed, strict=True)
                columns = [(high - low, low) if fixed is None else (0.0, fixed) for low, high, fixed in ends]
                for _ in range(count):
                    for (width, start), fixed in zip(columns, term.fixed, strict=True):
                        index.append(draws if fixed is None else 0)
                        factor.append(width)
                        offset.append(start)
                        draws += fixed is None
        like = self.network.spread
        return Placement(
            draws, torch.tensor(index, device=like.device), like.new_tensor(factor), like.new_tensor(offset), sizes
        )

    def draw(self) -> list[Tensor]:
        """Draw the points (R, N, 2) of each pass in the next step."""
        points = self.points_at(self.counter)
        self.counter += 1
        return points

    def points_at(self, step: Tensor, rows: slice = slice(None)) -> list[Tensor]:
        """Return the points (R, N, 2) of each pass. They depend on the seed of the run and the step alone."""
        place = self.placement
        draws = draw_uniform(self.seeds[rows], step, place.draws, self.dtype)
        points = draws[:, place.index].mul_(place.factor).add_(place.offset).unflatten(1, (-1, 2))
        return list(points.split(place.sizes, 1))

    def losses(self, points: Sequence[Tensor], rows: slice = slice(None)) -> Tensor:
        """Return the losses (R, T) of the networks in some rows, differentiable with respect to their parameters."""
        layers = [layer[rows] for layer in self.network.layers()]
        return torch.stack(self._losses(points, [layers] * len(self.tasks)), 1)

    def task_gradients(self, points: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the detached losses (R, T), and their gradients (R, T, P) from a single reverse pass.

        Each task has its own autograd leaves for the shared parameters, so that its gradient is kept apart. On CUDA,
        the passes are parallel branches, forward and backward; COUNTERPOISE_PARALLEL=0 disables this.
        """
        branches = Branches(self.seeds.device) if os.environ.get("COUNTERPOISE_PARALLEL") != "0" else None
        layers = self.network.aligned_layers()
        leaves = [[layer.detach().requires_grad_() for layer in layers] for _ in self.tasks]
        losses = self._losses(points, leaves, branches)
        ones = [torch.ones_like(loss) for loss in losses]
        inputs = [leaf for row in leaves for leaf in row]
        found = torch.autograd.grad(losses, inputs, ones, materialize_grads=True)  # a bias may have no effect
        if branches is not None:
            branches.join()
        gradients = torch.cat([grad.flatten(1) for grad in found], 1).unflatten(1, (len(self.tasks), -1))
        if gradients.shape[2] > len(self.unpadded):
            gradients = gradients[..., self.unpadded]
        return torch.stack(losses, 1).detach(), gradients

    def residuals(self, points: Sequence[Tensor], value: Tensor, rows: slice) -> dict[str, Tensor]:
        """Return the residuals (R, N) of each task, with the loss as the mean of their squares.

        Args:
            points: the points of each pass.
            value: the parameters (R, P) of some of the networks, which the residuals depend on.
            rows: the rows of these networks.
        """
        layers = [self._layers(value)] * len(self.tasks)
        found = self._residuals([x[rows] for x in points], layers)
        total = [sum(residual.shape[1] for residual in task) for task in found]
        return {
            name: torch.cat([residual * (count / residual.shape[1]) ** 0.5 for residual in task], 1)
            for name, count, task in zip(self.tasks, total, found, strict=True)
        }

    def _losses(
        self, points: Sequence[Tensor], layers: Sequence[Sequence[Tensor]], branches: Branches | None = None
    ) -> list[Tensor]:
        """Return the loss (R,) of each task: the sum of the mean squares of its residuals."""
        means: list[list[Tensor]] = [[] for _ in self.tasks]
        for found, x in zip(self.passes, points, strict=True):
            with nullcontext() if branches is None else branches.next():
                residuals = self._pass_residuals(found, x, layers[found.task])
                means[found.task] += [residual.square().mean(1) for residual in residuals]
        if branches is not None:
            branches.join()
        return [task[0] if len(task) == 1 else torch.stack(task).sum(0) for task in means]

    def _residuals(self, points: Sequence[Tensor], layers: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Return the residuals (R, N) of each task, evaluated with its own parameters."""
        residuals: list[list[Tensor]] = [[] for _ in self.tasks]
        for found, x in zip(self.passes, points, strict=True):
            residuals[found.task] += self._pass_residuals(found, x, layers[found.task])
        return residuals

    def _pass_residuals(self, found: NetworkPass, x: Tensor, layers: Sequence[Tensor]) -> list[Tensor]:
        """Return the residuals (R, N) of the terms of one pass."""
        jet = self.network.jet(x, found.derivatives, layers)
        residuals: list[Tensor] = []
        start = 0
        for term in found.terms:
            stop = start + self.points[term.drawn == 2]
            residuals += term.residuals(x[:, start:stop], jet.narrow(start, stop))
            start = stop
        return residuals

    def _layers(self, value: Tensor) -> list[Tensor]:
        """Return views of parameters (R, P) with the shapes of the layers."""
        layers = self.network.layers()
        parts = value.split([layer[0].numel() for layer in layers], 1)
        return [part.unflatten(1, layer.shape[1:]) for part, layer in zip(parts, layers, strict=True)]

    @torch.no_grad()
    def predict(self, value: Tensor, points: Tensor) -> Tensor:
        """Return the outputs (R, N) at points (N, 2) of networks with the parameters `value` (R, P)."""
        layers, outputs = self._layers(value), []
        for x in points.split(EVALUATION_POINTS):
            outputs.append(self.network.jet(x.expand(self.replicas, *x.shape), (), layers).value)
        return torch.cat(outputs, 1)

    def errors(self, value: Tensor) -> Tensor:
        """Return the relative L2 errors (R,) on the test grid of networks with the parameters `value` (R, P)."""
        difference = torch.linalg.vector_norm(self.predict(value, self.grid) - self.exact, dim=1)
        errors: Tensor = difference / torch.linalg.vector_norm(self.exact)
        return errors

    def state_dict(self) -> dict[str, Any]:
        return {"counter": self.counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counter.copy_(state["counter"])


@cache
def _solution(equation: str) -> tuple[Tensor, Tensor]:
    """Return the test grid and the exact solution there."""
    grid = EQUATIONS[equation].grid(GRID)
    return grid, EQUATIONS[equation].exact(grid)


def _passes(task: int, terms: Sequence[Term]) -> list[NetworkPass]:
    """Group the terms of a task by the derivatives that they need."""
    groups: dict[Derivatives, list[Term]] = {}
    for term in terms:
        groups.setdefault(term.derivatives, []).append(term)
    return [NetworkPass(task, derivatives, tuple(group)) for derivatives, group in groups.items()]
