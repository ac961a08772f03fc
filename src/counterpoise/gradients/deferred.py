"""A loss that runs a given backward pass, for frameworks that scale and differentiate the loss themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class FactorScaler:
    """Scale by a fixed factor, with the `scale` method of a GradScaler."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def scale(self, outputs: Tensor) -> Tensor:
        """Return `outputs` times the factor."""
        return outputs * self.factor


class DeferredBackward(torch.autograd.Function):
    """Return `value`; on backward, call `run(scaler, retain_graph)`, where the scaler holds the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, value: Tensor, run: Callable[[FactorScaler, bool], object]) -> Tensor:
        ctx.run = run
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        with torch.enable_grad():
            ctx.run(FactorScaler(grads[0]), _retains_graph())
        return None, None, None


def _retains_graph() -> bool:
    """Return whether the current backward pass was called with retain_graph=True; False if torch cannot tell."""
    query = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return False if query is None else bool(query())


def defer_backward(value: Tensor, run: Callable[[FactorScaler, bool], object]) -> Tensor:
    """Return a loss equal to `value` whose backward pass calls `run(scaler, retain_graph)`."""
    root = torch.zeros((), requires_grad=True)  # autograd skips a function none of whose inputs requires a gradient
    loss: Tensor = DeferredBackward.apply(root, value.detach(), run)  # type: ignore[no-untyped-call]
    return loss
