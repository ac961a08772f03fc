"""The balancers of a batch of runs: one for each group of runs with the same method."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import counterpoise as cp

from .config import Recipe, Run
from .methods import describe, make
from .optim import ReplicaOptimizer


def balancer_structure(recipe: Recipe) -> tuple[object, ...]:
    """Return what two runs must share to use one balancer: everything but learning rates, decays and clips."""
    weighting = balancer_structure(recipe.weighting) if recipe.weighting else None
    return recipe.name, recipe.options, weighting, recipe.optimizer, recipe.start, recipe.joined


def compares_gradients(recipe: Recipe) -> bool:
    """Return whether a method needs the gradients of single tasks, at least in some steps."""
    return describe(recipe.name).space != "loss" or dict(recipe.options).get("statistic") == "gradient"


class BalancerGroups(nn.Module):
    """Balance the losses (R, T) of a batch of runs in which runs of equal structure follow one another.

    Loss-space methods can be mixed freely: they share one backward pass. A method that compares task gradients must be
    the only group.
    """

    def __init__(self, runs: Sequence[Run], tasks: tuple[str, ...], device: str, passes: str = "auto") -> None:
        super().__init__()
        self.runs = [list(group) for _, group in groupby(runs, key=lambda run: balancer_structure(run.recipe))]
        self.sizes, self.tasks = [len(group) for group in self.runs], tasks
        balancers = [
            build_balancer(group[0].recipe, tasks, [run.seed for run in group], passes=passes) for group in self.runs
        ]
        self.balancers = nn.ModuleList(balancers).to(device)
        self.needs_step_end = any("step_end" in describe(group[0].recipe.name).needs for group in self.runs)

    def members(self) -> list[cp.Balancer]:
        """Return the balancer of each group, in the order of the runs."""
        return list(self.balancers)  # type: ignore[arg-type]

    def step_end_rows(self) -> list[tuple[cp.Balancer, slice]]:
        """Return the balancers that need the losses after a step, with the rows of their runs."""
        found, first = [], 0
        for balancer, runs in zip(self.members(), self.runs, strict=True):
            if "step_end" in describe(runs[0].recipe.name).needs:
                found.append((balancer, slice(first, first + len(runs))))
            first += len(runs)
        return found

    def backward(self, losses: Tensor, shared: list[nn.Parameter], scaler: GradScaler | None = None) -> None:
        balancers = self.members()
        if len(balancers) == 1:
            balancers[0].backward(losses, shared=shared, scaler=scaler)
            return
        parts = zip(balancers, losses.split(self.sizes), strict=True)
        total = torch.cat([balancer(part) for balancer, part in parts]).sum()
        (total if scaler is None else scaler.scale(total)).backward()

    def step_end(self, losses_after: Tensor) -> None:
        for balancer, part in zip(self.members(), losses_after.split(self.sizes), strict=True):
            balancer.step_end(part)

    def epoch_end(self) -> None:
        for balancer in self.members():
            balancer.epoch_end()

    def weights(self, like: Tensor) -> Tensor:
        """Return the task weights of the last step, (R, T); NaN for methods that have none."""
        found = [_weights_of_all(balancer, self.tasks) for balancer in self.members()]
        parts = zip(found, like.split(self.sizes), strict=True)
        return torch.cat([torch.full_like(part, torch.nan) if own is None else own for own, part in parts])

    def chart_values(self) -> list[dict[str, Any]]:
        """Return μ, ς̄, z/τ and θ of the last step for each run; empty for methods without a chart."""
        return [row for b, size in zip(self.members(), self.sizes, strict=True) for row in chart_values(b, size)]

    def optimizers(self, *, capturable: bool = False) -> list[tuple[slice, ReplicaOptimizer]]:
        """Return an optimiser for each balancer that has parameters, with the rows of its runs."""
        optimizers, first = [], 0
        for balancer, runs in zip(self.members(), self.runs, strict=True):
            if any(True for _ in balancer.parameters()):
                optimizers.append((slice(first, first + len(runs)), _balancer_optimizer(balancer, runs, capturable)))
            first += len(runs)
        return optimizers


def _weights_of_all(balancer: cp.Balancer, tasks: tuple[str, ...]) -> Tensor | None:
    """Return the weights of the last step, with those of fixed losses; None for methods that have none."""
    own = balancer._last.weights  # `weights` would copy it
    if own is None or not balancer.fixed:
        return own
    columns = dict(zip(balancer.tasks, own.unbind(-1), strict=True))
    return torch.stack(
        [columns[task] if task in columns else torch.full_like(own[..., 0], balancer.fixed[task]) for task in tasks], -1
    )


def chart_values(balancer: cp.Balancer, replicas: int) -> list[dict[str, Any]]:
    """Return μ, ς̄, z/τ and θ of each replica; empty for methods without a chart or without some of the losses."""
    weighting = getattr(balancer, "weighting", None) or balancer
    chart = getattr(weighting, "geometry", None)
    if chart is None or balancer.fixed:
        return [{} for _ in range(replicas)]
    columns = {"mu": chart.mu[..., 0], "std": chart.std[..., 0], "z_over_tau": chart.z_over_tau, "theta": chart.theta}
    values = {name: column if balancer.batch_shape else column[None] for name, column in columns.items()}
    lists = {name: column.tolist() for name, column in values.items()}
    return [{name: column[r] for name, column in lists.items()} for r in range(replicas)]


def build_balancer(
    recipe: Recipe, tasks: tuple[str, ...], seeds: list[int], *, passes: str = "auto", stacked: bool = True
) -> cp.Balancer:
    """Build the balancer of a recipe for len(seeds) replicas.

    Args:
        recipe: the method and its options.
        tasks: the names of the tasks.
        seeds: one seed per replica, for methods that draw random numbers.
        passes: how a method that combines task gradients computes them.
        stacked: whether the balancer has a replica dimension; False needs a single seed.
    """
    options: dict[str, Any] = dict(recipe.options)
    if issubclass(describe(recipe.name).build, cp.Aggregation):
        options.setdefault("passes", passes)
    if recipe.weighting is not None:
        balanced = tuple(task for task in tasks if task not in dict(options.get("fixed", ())))
        options["weighting"] = build_balancer(recipe.weighting, balanced, seeds, stacked=stacked)
    if _takes_seed(recipe.name):
        options.setdefault("seed", seeds if stacked else seeds[0])
    balancer = make(recipe.name, tasks, batch_shape=(len(seeds),) if stacked else (), **options)
    if recipe.start is not None:
        with torch.no_grad():
            for parameter in balancer.parameters():
                parameter.copy_(torch.tensor(recipe.start))
    return balancer


def _takes_seed(method: str) -> bool:
    return "seed" in describe(method).build.__init__.__annotations__


def _balancer_optimizer(balancer: cp.Balancer, runs: Sequence[Run], capturable: bool) -> ReplicaOptimizer:
    recipes = [run.recipe.weighting or run.recipe for run in runs]
    return ReplicaOptimizer(
        list(balancer.parameters()),
        len(runs),
        optimizer=recipes[0].optimizer,
        lr=[run.network_lr if recipe.lr is None else recipe.lr for run, recipe in zip(runs, recipes, strict=True)],
        weight_decay=[recipe.weight_decay for recipe in recipes],
        clip=[run.network_clip if recipe.joined else recipe.clip for run, recipe in zip(runs, recipes, strict=True)],
        capturable=capturable,
    )
