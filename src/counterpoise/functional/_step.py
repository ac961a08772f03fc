"""The result of a loss-space rule."""

from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from ._floats import FloatStep
from ._masking import clamp_to_dtype, output_dtype

FLOAT_TASKS = 512  # tensor operations become faster than Python arithmetic near 900 tasks


class Step(NamedTuple):
    """Result of a loss-space rule for losses of shape (…, T). All tensors are detached.

    A rule computes its own derivatives, so a step is a single node of the autograd graph for every method.

    Attributes:
        objective (Tensor): Value of the objective, shape (…).
        weights (Tensor): Derivative of the objective with respect to each loss, shape (…, T).
        gradient (Tensor or None): Gradient of the rule's learned parameters, shape (…, T). None if it has none.
    """

    objective: Tensor
    weights: Tensor
    gradient: Tensor | None = None


def make_step(losses: Tensor, objective: Tensor, weights: Tensor, gradient: Tensor | None = None) -> Step:
    """Build a step from results in working precision, cast to the output dtype for `losses`."""
    dtype = output_dtype(losses)
    if gradient is not None:
        gradient = clamp_to_dtype(gradient, dtype)
    return Step(objective.to(dtype), weights.to(dtype), gradient)


def reads_floats(losses: Tensor) -> bool:
    """Return whether a rule may compute with Python floats: for one loss vector on the CPU, outside compiled graphs."""
    return (
        losses.dim() == 1
        and losses.device.type == "cpu"
        and losses.dtype in (torch.float32, torch.float64)
        and losses.shape[0] <= FLOAT_TASKS
        and not torch.compiler.is_compiling()
    )


def floats_to_tensor(values: list[float], dtype: torch.dtype) -> Tensor:
    """Return a vector on the CPU, float32 or float64. Faster than `torch.tensor`."""
    return torch.frombuffer(array("f" if dtype == torch.float32 else "d", values), dtype=dtype)


def round_floats(values: list[float], dtype: torch.dtype) -> list[float]:
    """Return the values in the precision of float32 or float64."""
    return array("f", values).tolist() if dtype is torch.float32 else values


def step_from_floats(step: FloatStep, dtype: torch.dtype) -> Step:
    """Convert a step from Python floats."""
    gradient = None if step.gradient is None else floats_to_tensor(step.gradient, dtype)
    (objective,) = round_floats([step.objective], dtype)  # scalar_tensor refuses a float that overflows
    return Step(torch.scalar_tensor(objective, dtype=dtype), floats_to_tensor(step.weights, dtype), gradient)
