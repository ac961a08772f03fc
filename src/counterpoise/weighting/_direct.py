"""The short way from losses to the objective, for one vector of finite losses on the CPU.

The weights are computed in Python floats, and the objective is connected with the losses by native operations: the
inner product of losses and weights, plus that of the learned parameter and its gradient. Its value is then set to the
exact one. Whatever is not covered returns None and takes the general way, which also raises all errors.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import distributed
from ..functional._floats import FloatStep
from ..functional._step import FLOAT_TASKS, floats_to_tensor, step_from_floats
from ..inputs import Losses
from ._objective import Objective

if TYPE_CHECKING:
    from .base import Weighting

ORDINARY = 1e15  # larger losses may overflow in the state of a method
DTYPES = (torch.float32, torch.float64)


def direct_objective(balancer: "Weighting", losses: Losses) -> Tensor | None:
    """Return the objective of a step without further options; None if the general way is needed."""
    if not _is_plain(balancer):
        return None
    inputs = _inputs(losses, balancer.tasks)
    if inputs is None:
        return None
    first, learned = inputs[0], balancer.learned
    dtype, device = first.dtype, balancer._state_device_and_dtype(learned)[0]
    if dtype not in DTYPES or (device is not None and device.type != "cpu"):
        return None
    if learned is not None and learned.dtype is not dtype:
        return None
    values: list[float] = first.tolist() if isinstance(losses, Tensor) else [loss.item() for loss in inputs]
    learning = balancer.learning
    if not sum(map(abs, values)) < ORDINARY:  # also for NaN, which min and max may skip
        return None
    if torch.is_grad_enabled() and not any(loss.requires_grad for loss in inputs):
        return None
    try:
        step = balancer.weigh_floats(values, learning)
    except (OverflowError, ZeroDivisionError):
        return None
    if step is None:
        return None
    balancer.record_floats(step.weights, values, dtype, learning)
    return _connect(step, inputs, isinstance(losses, Tensor), learned, dtype, balancer.linear)


def _is_plain(balancer: "Weighting") -> bool:
    """Return whether the step has no options that change it, and is neither transformed nor distributed."""
    return not (
        balancer.strict
        or balancer.fixed
        or balancer.batch_shape
        or balancer.measures_gradients
        or balancer._adjusts_weights
        or balancer._in_closure
        or torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
        or distributed.is_active(balancer.process_group)
    )


def _inputs(losses: Losses, tasks: tuple[str, ...]) -> list[Tensor] | None:
    """Return the given losses, or None unless every task has a scalar of the same kind on the CPU."""
    if isinstance(losses, Tensor):
        fits = losses.is_cpu and losses.dim() == 1 and losses.shape[0] == len(tasks) <= FLOAT_TASKS
        return [losses] if fits else None
    if not isinstance(losses, Mapping | Sequence) or not len(losses) == len(tasks) <= FLOAT_TASKS:
        return None
    inputs = [losses.get(task) for task in tasks] if isinstance(losses, Mapping) else list(losses)
    dtype = getattr(inputs[0], "dtype", None)
    for loss in inputs:
        if not isinstance(loss, Tensor) or loss.dtype is not dtype or loss.dim() or not loss.is_cpu:
            return None
    return inputs  # type: ignore[return-value]


def _connect(
    step: FloatStep, inputs: list[Tensor], stacked: bool, learned: Tensor | None, dtype: torch.dtype, linear: bool
) -> Tensor:
    """Return the objective with a graph."""
    if not torch.is_grad_enabled():
        return torch.scalar_tensor(step.objective, dtype=dtype)
    learns = learned is not None and step.gradient is not None
    if not linear or (stacked and learns):
        # The node refuses second derivatives that native operations would get wrong. For a tensor and a learned
        # parameter, it is also faster than three native ones.
        losses = inputs[0] if stacked else torch.stack(inputs)
        return Objective.apply(step_from_floats(step, dtype), learned, linear, None, (), losses)  # type: ignore
    if stacked:
        objective = torch.dot(inputs[0], floats_to_tensor(step.weights, dtype))
    elif learned is None or step.gradient is None:
        objective = torch.dot(torch.stack(inputs), floats_to_tensor(step.weights, dtype))
    else:
        term = torch.dot(learned, floats_to_tensor(step.gradient, dtype))
        objective = torch.dot(torch.stack([*inputs, term]), floats_to_tensor([*step.weights, 1.0], dtype))
    objective.data = torch.scalar_tensor(step.objective, dtype=dtype)
    return objective
