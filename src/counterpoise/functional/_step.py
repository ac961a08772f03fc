"""The result of a loss-space rule."""

from typing import NamedTuple

from torch import Tensor

from ._masking import clamp_to_dtype, output_dtype


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
