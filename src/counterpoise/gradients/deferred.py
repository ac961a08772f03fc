"""A loss whose backward pass is somebody else's: for frameworks that scale a loss and differentiate it themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class FactorScaler:
    """Stands where a GradScaler may stand, and scales by what a framework multiplied the loss by."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def scale(self, outputs: Tensor) -> Tensor:
        return outputs * self.factor


class DeferredBackward(torch.autograd.Function):
    """`value`, with `run(factor, retain_graph)` as its backward pass: the factor is the gradient that arrives."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, value: Tensor, run: Callable[[FactorScaler, bool], object]) -> Tensor:
        ctx.run = run
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        with torch.enable_grad():
            ctx.run(FactorScaler(grads[0]), _retained())
        return None, None, None


def _retained() -> bool:
    """Whether the pass that is being run was called with retain_graph=True; torch alone knows."""
    told = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return False if told is None else bool(told())


def defer_backward(value: Tensor, run: Callable[[FactorScaler, bool], object]) -> Tensor:
    root = torch.zeros((), requires_grad=True)  # something to differentiate by: without it nothing would run
    loss: Tensor = DeferredBackward.apply(root, value.detach(), run)  # type: ignore[no-untyped-call]
    return loss
