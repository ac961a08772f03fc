"""The balancers of a stack: one for each method in it, side by side."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import counterpoise as cp

from .config import Recipe, Run
from .methods import describe, make
from .optim import Group


def structure(recipe: Recipe) -> tuple[object, ...]:
    """What two runs must have in common to share a balancer: all but rates, decays and clips."""
    weighting = structure(recipe.weighting) if recipe.weighting else None
    return recipe.name, recipe.options, weighting, recipe.optimizer, recipe.start, recipe.joined


def draws(method: str) -> bool:
    """Whether a method draws random numbers: each replica then has a stream of its own."""
    return "seed" in describe(method).build.__init__.__annotations__


class BalancerGroups(nn.Module):
    """Balances the losses (R, T) of a stack whose runs stand in sections of equal structure.

    Any mixture of loss-space methods is one backward. A gradient-space method needs the stack for itself.
    """

    def __init__(self, runs: Sequence[Run], tasks: tuple[str, ...], device: str, passes: str = "auto") -> None:
        super().__init__()
        sections = [list(section) for _, section in groupby(runs, key=lambda run: structure(run.recipe))]
        self.runs, self.sizes = sections, [len(section) for section in sections]
        built = [build_balancer(section[0].recipe, tasks, [run.seed for run in section], passes) for section in sections]
        self.balancers = nn.ModuleList(built).to(device)
        needs = [describe(section[0].recipe.name).needs for section in sections]
        self.needs_after = any("step_end" in need for need in needs)

    def _each(self) -> list[cp.Balancer]:
        return list(self.balancers)  # type: ignore[arg-type]

    def backward(self, losses: Tensor, shared: list[nn.Parameter], scaler: GradScaler | None = None) -> None:
        balancers = self._each()
        if len(balancers) == 1:
            balancers[0].backward(losses, shared=shared, scaler=scaler)
            return
        parts = zip(balancers, losses.split(self.sizes), strict=True)
        total = torch.cat([balancer(part) for balancer, part in parts]).sum()
        (total if scaler is None else scaler.scale(total)).backward()

    def step_end(self, losses_after: Tensor) -> None:
        for balancer, part in zip(self._each(), losses_after.split(self.sizes), strict=True):
            balancer.step_end(part)

    def epoch_end(self) -> None:
        for balancer in self._each():
            balancer.epoch_end()

    def weights(self, like: Tensor) -> Tensor:
        """What multiplied each task in the last step, (R, T); NaN where a method has no such vector."""
        parts = zip(self._each(), like.split(self.sizes), strict=True)
        return torch.cat([torch.full_like(part, torch.nan) if b.weights is None else b.weights for b, part in parts])

    def charts(self) -> list[dict[str, Any]]:
        """For each run the chart of its last step: μ, ς̄, z/τ, θ; empty for methods without one."""
        return [row for b, size in zip(self._each(), self.sizes, strict=True) for row in charts(b, size)]

    def groups(self) -> list[tuple[slice, Group]]:
        """An optimiser for the coordinates of each section that has any, with the rows of its runs."""
        found, first = [], 0
        for balancer, runs in zip(self._each(), self.runs, strict=True):
            if any(True for _ in balancer.parameters()):
                found.append((slice(first, first + len(runs)), coordinates(balancer, runs)))
            first += len(runs)
        return found


def charts(balancer: cp.Balancer, size: int) -> list[dict[str, Any]]:
    """The chart of each of a balancer's replicas, or of the one that it balances."""
    weighting = getattr(balancer, "weighting", None) or balancer
    chart = getattr(weighting, "geometry", None)
    if chart is None:
        return [{} for _ in range(size)]
    columns = {"mu": chart.mu[..., 0], "std": chart.std[..., 0], "z_over_tau": chart.z_over_tau, "theta": chart.theta}
    values = {name: column if balancer.batch_shape else column[None] for name, column in columns.items()}
    lists = {name: column.tolist() for name, column in values.items()}
    return [{name: column[r] for name, column in lists.items()} for r in range(size)]


def build_balancer(
    recipe: Recipe, tasks: tuple[str, ...], seeds: list[int], passes: str = "auto", *, stacked: bool = True
) -> cp.Balancer:
    """A balancer for len(seeds) replicas; for a single run without a replica dimension, where it is not stacked."""
    options: dict[str, Any] = dict(recipe.options)
    if describe(recipe.name).space == "gradient":
        options.setdefault("passes", passes)
    if recipe.weighting is not None:
        options["weighting"] = build_balancer(recipe.weighting, tasks, seeds, stacked=stacked)
    if draws(recipe.name):
        options.setdefault("seed", seeds if stacked else seeds[0])
    balancer = make(recipe.name, tasks, batch_shape=(len(seeds),) if stacked else (), **options)
    if recipe.start is not None:
        with torch.no_grad():
            for parameter in balancer.parameters():
                parameter.copy_(torch.tensor(recipe.start))
    return balancer


def coordinates(balancer: cp.Balancer, runs: Sequence[Run]) -> Group:
    recipes = [run.recipe.weighting or run.recipe for run in runs]
    return Group(
        list(balancer.parameters()),
        len(runs),
        optimizer=recipes[0].optimizer,
        lr=[run.network_lr if recipe.lr is None else recipe.lr for run, recipe in zip(runs, recipes, strict=True)],
        weight_decay=[recipe.weight_decay for recipe in recipes],
        clip=[run.network_clip if recipe.joined else recipe.clip for run, recipe in zip(runs, recipes, strict=True)],
    )
