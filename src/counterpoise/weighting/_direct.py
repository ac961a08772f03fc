"""The short way from losses to the objective, for one vector of finite losses on the CPU. `_recorded` is that for CUDA.

The weights are computed in Python floats, and the objective is connected with the losses by native operations: the
inner product of losses and weights, in which a learned parameter and its gradient continue the two vectors. Its value
is then set to the exact one. Whatever is not covered returns None and takes the general way, which also raises all
errors.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import distributed
from ..functional import _replay
from ..functional._floats import FloatStep
from ..functional._step import FLOAT_TASKS, floats_to_tensor
from ..inputs import Losses
from ._objective import connect
from ._recorded import is_state_beside, recorded_objective

if TYPE_CHECKING:
    from .base import Weighting

ORDINARY = 1e15  # larger losses may overflow in the state of a method
DTYPES = (torch.float32, torch.float64)
get_dtype = attrgetter("dtype")
is_autocast_enabled, is_grad_enabled = torch._C._is_any_autocast_enabled, torch.is_grad_enabled
are_transforms_active = torch._C._are_functorch_transforms_active
is_distributed: Callable[[], bool] = getattr(torch.distributed, "is_initialized", bool)  # some builds have no ranks


def direct_objective(balancer: "Weighting", losses: Losses) -> Tensor | None:
    """Return the objective of a step without further options; None if the general way is needed."""
    if (
        balancer.strict
        or balancer.fixed
        or balancer.batch_shape
        or balancer.measures_gradients
        or balancer._adjusts_weights
        or balancer._in_closure
        or is_autocast_enabled()
        or are_transforms_active()
        or (is_distributed() and distributed.is_active(balancer.process_group))
    ):
        return None
    tasks, learned, has_graph = balancer.tasks, balancer.learned, is_grad_enabled()
    vector = losses if isinstance(losses, Tensor) else _stack(losses, tasks)
    if vector is None or vector.shape != (len(tasks),) or len(tasks) > FLOAT_TASKS or not _is_covered(vector):
        return None
    dtype = vector.dtype
    if dtype not in DTYPES or (has_graph and not vector.requires_grad):
        return None
    if not vector.is_cpu:
        return recorded_objective(balancer, vector, learned, has_graph)
    if not is_state_beside(balancer, learned, vector):
        return None
    values: list[float] = vector.tolist()
    if not sum(map(abs, values)) < ORDINARY:  # also for NaN, which min and max may skip
        return None
    learning = has_graph and balancer.training
    balancer._last.dtype = dtype
    try:
        step = balancer.weigh_floats(values, learning)
    except (OverflowError, ZeroDivisionError):
        return None
    if step is None:
        return None
    balancer.record_floats(step.weights, values, dtype, learning)
    if not has_graph:
        return torch.scalar_tensor(step.objective, dtype=dtype)
    return _connect(step, vector, learned, dtype, balancer.linear)


def _is_covered(loss: Tensor) -> bool:
    """Return whether a tensor is on the CPU, or on CUDA if rules are captured."""
    return loss.is_cpu or (_replay.ENABLED and loss.is_cuda)


def _stack(losses: object, tasks: tuple[str, ...]) -> Tensor | None:
    """Return the losses in one vector, or None unless every task has a scalar of the same precision."""
    if not isinstance(losses, (dict, list, tuple)) or len(losses) != len(tasks):
        return None
    inputs: Any = list(map(losses.get, tasks)) if isinstance(losses, dict) else losses
    first = inputs[0]
    if not isinstance(first, Tensor) or not _is_covered(first):
        return None
    try:
        if list(map(get_dtype, inputs)).count(first.dtype) < len(inputs):
            return None
        return torch.stack(inputs)
    except (AttributeError, RuntimeError, TypeError):  # not all are tensors, or they differ in shape or device
        return None


def _connect(step: FloatStep, vector: Tensor, learned: Tensor | None, dtype: torch.dtype, linear: bool) -> Tensor:
    """Return the objective with a graph."""
    derivatives = step.weights
    if learned is not None and step.gradient is not None:
        vector, derivatives = torch.cat((vector, learned)), derivatives + step.gradient
    return connect(
        vector, floats_to_tensor(derivatives, dtype), torch.scalar_tensor(step.objective, dtype=dtype), linear
    )
