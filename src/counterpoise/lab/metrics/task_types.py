"""Kinds of tasks: how each is trained and how it is scored, for a whole stack of replicas at once.

Outputs are (…, rows, width), targets (…, rows) or (…, rows, width); losses and scores are (…). A loss is a mean over
rows; a score is at most 1, higher is better.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

EDGE = 1 - 1e-6  # where arccos still has a derivative

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TaskType:
    loss: Measure
    score: Measure


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a problem: its name, its kind, how many outputs it has."""

    name: str
    kind: str
    width: int = 1


def wide(out: Tensor) -> Tensor:
    """Losses are taken in single precision at least, whatever the network computes in."""
    return out.float() if out.element_size() < 4 else out


def mean_squared_error(out: Tensor, y: Tensor) -> Tensor:
    return (out.squeeze(-1) - y).square().mean(-1)


def smooth_l1(out: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(out.squeeze(-1), y, reduction="none").mean(-1)


def absolute_error(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).abs().mean((-1, -2))


def binary_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(out.squeeze(-1), y, reduction="none").mean(-1)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape).mean(-1)


def angle(out: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(out, y, dim=-1).clamp(-EDGE, EDGE).arccos().mean(-1)


def r2(out: Tensor, y: Tensor) -> Tensor:
    """R² clipped to [−1, 1]; the mean over outputs where there are several."""
    y = y.unsqueeze(-1) if y.dim() < out.dim() else y
    unexplained = (y - out).square().sum(-2) / (y - y.mean(-2, keepdim=True)).square().sum(-2)
    return (1 - unexplained).mean(-1).clamp(-1, 1)


def f1(out: Tensor, y: Tensor) -> Tensor:
    """F1 of the positive class at probability ½."""
    return _f1((out.squeeze(-1) >= 0), y.bool())


def macro_f1(out: Tensor, y: Tensor) -> Tensor:
    """The mean F1 over the classes that are predicted or true somewhere."""
    classes = torch.arange(out.shape[-1], device=out.device).unsqueeze(-1)
    chosen, true = out.argmax(-1).unsqueeze(-2) == classes, y.unsqueeze(-2) == classes
    present = (chosen | true).any(-1)
    return (_f1(chosen, true) * present).sum(-1) / present.sum(-1)


def closeness(out: Tensor, y: Tensor) -> Tensor:
    return 1 - angle(out, y) / torch.pi


def _f1(chosen: Tensor, true: Tensor) -> Tensor:
    return f1_of_counts((chosen & true).sum(-1), chosen.sum(-1), true.sum(-1))


def f1_of_counts(hits: Tensor, chosen: Tensor, true: Tensor) -> Tensor:
    """2·hits / (chosen + true); 0 where nothing is chosen or true."""
    return 2 * hits / (chosen + true).clamp_min(1)


TASK_TYPES: dict[str, TaskType] = {
    "squared": TaskType(mean_squared_error, r2),
    "smooth-l1": TaskType(smooth_l1, r2),
    "absolute": TaskType(absolute_error, r2),
    "binary": TaskType(binary_cross_entropy, f1),
    "classes": TaskType(cross_entropy, macro_f1),
    "direction": TaskType(angle, closeness),
}
