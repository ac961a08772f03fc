"""The three synthetic problems of the paper, as its authors generated them (docs/studies.md)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..metrics import Task
from .samplers import ProblemSampler, logit

TRAIN_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set in memory: inputs, one target per task, and the row numbers for training and for evaluation."""

    x: Tensor
    y: tuple[Tensor, ...]
    train: Tensor
    held_out: Tensor


@dataclass(frozen=True, slots=True)
class Problem:
    """A family of data sets: its tasks, and a function that draws a data set from a seed."""

    tasks: tuple[Task, ...]
    draw: Callable[..., Dataset]


RESCALING = (
    Task("regression", "squared"),
    Task("robust", "smooth-l1"),
    Task("binary", "binary"),
    Task("classes", "classes", 6),
    Task("direction", "direction", 3),
)
SCALE_STRESS = (
    Task("classes", "classes", 3),
    Task("regression", "squared"),
    Task("binary", "binary"),
    Task("classes_steep", "classes", 3),
)
HETEROGENEOUS = (
    Task("regression", "squared"),
    Task("robust", "smooth-l1"),
    Task("binary", "binary"),
    Task("binary_rare", "binary"),
    Task("classes_10", "classes", 10),
    Task("classes_20", "classes", 20),
    Task("direction", "direction", 3),
    Task("plane", "absolute", 2),
)

REGIMES = {"clean": (0.45, 0.05), "noisy": (0.15, 0.14), "conflict": (-0.35, 0.10), "opposed": (0.80, 0.10)}
"""(ρ, η) of the heterogeneous regimes. `opposed` is ours: it reverses the directions of every second task."""


def draw_rescaling(seed: int) -> Dataset:
    """Draw the data of the rescaling problem."""
    rows, flip, sampler = 1536, 0.08, ProblemSampler(seed)
    x, z = sampler.features(rows, inputs=24, latent=20)
    d = sampler.correlated(sampler.normal(20), 9, 0.3)
    regression = 1.25 * z @ d[0] + 0.2 * sampler.normal(rows)
    robust = 0.9 * z @ d[1] + 0.08 * sampler.normal(rows) + 1.75 * sampler.outliers(rows, 0.08, 0.18)
    binary = sampler.binary(z @ d[2] + 0.35 * z[:, 0].sign(), flip)
    directions = torch.stack([d[3], *sampler.correlated(d[4], 5, 0.15)])
    classes = sampler.classes(1.2 * z @ directions.T + 0.15 * z[:, :6], flip)
    direction = sampler.direction(torch.stack([z @ d[5], z @ d[6], z @ d[7]], 1), 0.08)
    return _split(sampler, x, regression, robust, binary, classes, direction)


def draw_scale_stress(seed: int, *, scale: float) -> Dataset:
    """Draw the data of the scale-stress problem.

    No loss is multiplied. The scale stretches one target, sharpens the logits of one task and unbalances labels.
    """
    rows, flip, sampler = 1024, 0.1, ProblemSampler(seed)
    x, z = sampler.features(rows, inputs=20, latent=16)
    v = sampler.correlated(sampler.normal(16), 4, 0.15)
    stretch = [scale ** (k / 3) for k in range(4)]
    prevalence = torch.linspace(0.5, 0.5 / scale, 4).tolist()

    def three_classes(k: int) -> Tensor:
        directions = torch.stack(sampler.correlated(v[k], 3, 0.15))
        return sampler.classes(stretch[k] * z @ directions.T + torch.tensor([math.log(scale), 0, 0]), flip)

    classes = three_classes(0)
    regression = stretch[1] * (z @ v[1] + 0.15 * sampler.normal(rows))
    binary = sampler.binary(z @ v[2] + logit(prevalence[2]), flip)
    return _split(sampler, x, classes, regression, binary, three_classes(3))


def draw_heterogeneous(seed: int, *, regime: str) -> Dataset:
    """Draw the data of the heterogeneous problem in one of the `REGIMES`."""
    rows, sampler = 2048, ProblemSampler(seed)
    rho, flip = REGIMES[regime]
    x, z = sampler.features(rows, inputs=32, latent=24)
    d = sampler.correlated(sampler.normal(24), 24, rho)
    if regime == "opposed":
        d = _oppose(d)
    regression = 1.4 * z @ d[0] + sampler.normal(rows) * (0.05 + 0.22 * torch.sigmoid(2.5 * z @ d[1]))
    robust = 0.8 * z @ d[2] + 0.07 * sampler.normal(rows) + 2.2 * sampler.outliers(rows, 0.12, 0.3)
    binary = sampler.binary((1.6 * z @ d[3] - 0.25 * z[:, 0].sign()) / 0.9, flip)
    rare = sampler.binary((1.1 * z @ d[4] + logit(0.18)) / 0.9, flip)
    ten = torch.stack([d[5], *sampler.correlated(d[6], 9, max(rho, 0.05))])
    classes_10 = sampler.classes(1.05 * z @ ten.T + 0.08 * z[:, :10], flip)
    twenty = torch.stack([d[7], *sampler.correlated(-d[8], 19, 0.0)])
    offsets = torch.zeros(20)
    offsets[:2] = torch.tensor([0.5, -0.35])
    classes_20 = sampler.classes(0.9 * z @ twenty.T + offsets, flip)
    direction = sampler.direction(torch.stack([z @ d[9], z @ d[10], z @ d[11]], 1), 0.12)
    plane = torch.stack([0.75 * z @ d[12] + 0.1 * z[:, 2].sign(), -0.6 * z @ d[13] + 0.15 * z[:, 3].sin()], 1)
    return _split(sampler, x, regression, robust, binary, rare, classes_10, classes_20, direction, plane)


def factors(tasks: Sequence[object], *, scale: float = 1.0, pattern: str = "single") -> Tensor:
    """Return the factors on the training losses.

    Args:
        tasks: The tasks.
        scale: The largest factor S.
        pattern: S for the first task only (`single`), S for all tasks (`uniform`), or S^{i/(T−1)} (`graded`).
    """
    count = len(tasks)
    if pattern == "single":
        return torch.tensor([scale, *[1.0] * (count - 1)])
    if pattern == "uniform":
        return torch.full((count,), scale)
    if pattern == "graded":
        return torch.tensor([scale ** (i / (count - 1)) for i in range(count)])
    raise ValueError(f"unknown pattern {pattern!r}, expected 'single', 'graded' or 'uniform'")


PROBLEMS = {
    "rescaling": Problem(RESCALING, lambda seed, **_: draw_rescaling(seed)),
    "scale-stress": Problem(SCALE_STRESS, draw_scale_stress),
    "heterogeneous": Problem(HETEROGENEOUS, draw_heterogeneous),
}


def training_factors(name: str, options: dict[str, Any]) -> Tensor:
    """Return the loss factors of a run. They are 1 except in the rescaling problem."""
    tasks = PROBLEMS[name].tasks
    return factors(tasks, **options) if name == "rescaling" else torch.ones(len(tasks))


def _oppose(d: list[Tensor]) -> list[Tensor]:
    """Reverse the directions of every second task. Tasks use directions 0–1, 2, 3, 4, 5–6, 7–8, 9–11 and 12–13."""
    owner = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7)
    return [-v if i < len(owner) and owner[i] % 2 else v for i, v in enumerate(d)]


def _split(sampler: ProblemSampler, x: Tensor, *y: Tensor) -> Dataset:
    rows = len(x)
    order, cut = sampler.permutation(rows), round(TRAIN_SHARE * rows)
    return Dataset(x, y, order[:cut], order[cut:])
