"""Task types: the loss and the score of each, for any number of replicas at once.

Outputs have the shape (…, rows, width), targets (…, rows) or (…, rows, width), losses and scores (…). A loss is a mean
over rows. A score is at most 1, and higher is better.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_COSINE = 1 - 1e-6  # keeps the derivative of arccos finite

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TaskType:
    """The loss and the score of a type of task."""

    loss: Measure
    score: Measure


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a problem: its name, its type (a key of `TASK_TYPES`) and its number of outputs."""

    name: str
    task_type: str
    width: int = 1


def at_least_float32(out: Tensor) -> Tensor:
    """Convert half-precision outputs to float32, so that losses are never computed in half precision."""
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


def angular_error(out: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(out, y, dim=-1).clamp(-MAX_COSINE, MAX_COSINE).arccos().mean(-1)


def r2(out: Tensor, y: Tensor) -> Tensor:
    """Return R² clipped to [−1, 1], averaged over the outputs."""
    y = y.unsqueeze(-1) if y.dim() < out.dim() else y
    unexplained = (y - out).square().sum(-2) / (y - y.mean(-2, keepdim=True)).square().sum(-2)
    return (1 - unexplained).mean(-1).clamp(-1, 1)


def f1(out: Tensor, y: Tensor) -> Tensor:
    """Return the F1 score of the positive class at probability ½."""
    return _f1((out.squeeze(-1) >= 0), y.bool())


def macro_f1(out: Tensor, y: Tensor) -> Tensor:
    """Return the mean F1 score over the classes that are predicted or true in some row."""
    classes = torch.arange(out.shape[-1], device=out.device).unsqueeze(-1)
    predicted, true = out.argmax(-1).unsqueeze(-2) == classes, y.unsqueeze(-2) == classes
    present = (predicted | true).any(-1)
    return (_f1(predicted, true) * present).sum(-1) / present.sum(-1)


def angular_score(out: Tensor, y: Tensor) -> Tensor:
    return 1 - angular_error(out, y) / torch.pi


def _f1(predicted: Tensor, true: Tensor) -> Tensor:
    return f1_from_counts((predicted & true).sum(-1), predicted.sum(-1), true.sum(-1))


def f1_from_counts(hits: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Return 2 hits / (predicted + true), or 0 if nothing is predicted or true."""
    return 2 * hits / (predicted + true).clamp_min(1)


TASK_TYPES: dict[str, TaskType] = {
    "squared": TaskType(mean_squared_error, r2),
    "smooth-l1": TaskType(smooth_l1, r2),
    "absolute": TaskType(absolute_error, r2),
    "binary": TaskType(binary_cross_entropy, f1),
    "classes": TaskType(cross_entropy, macro_f1),
    "direction": TaskType(angular_error, angular_score),
}
