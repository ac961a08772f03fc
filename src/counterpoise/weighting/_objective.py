"""The one autograd node that every loss-space balancer puts on top of the losses."""

from typing import Any

import torch
from torch import Tensor

from ..functional import Step


def fitted(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient in the precision of its parameter. Past that range it still has a sign: infinity would poison the
    optimiser's averages."""
    if gradient.dtype == dtype:
        return gradient
    limit = torch.finfo(dtype).max
    return (gradient.clamp(-limit, limit) if limit < torch.finfo(gradient.dtype).max else gradient).to(dtype)


class Objective(torch.autograd.Function):
    """Returns the value of an objective whose derivatives are known.

    The losses get the step's weights, the learned coordinates its gradient, each times the incoming gradient: a
    GradScaler's factor or a division by accumulation steps reaches both. Nothing is recomputed and nothing cancels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: Step,
        learned: Tensor | None,
        linear: bool,
        slots: tuple[int, ...] | None,
        cut: tuple[int, ...],
        *inputs: Tensor,
    ) -> Tensor:
        """`slots` is the task of each input (None: one input holds all), `cut` the tasks that get no gradient."""
        # Constants, neither inputs nor outputs: they need no version check, and plain attributes are cheaper.
        ctx.weights, ctx.gradient = step.weights, step.gradient
        if learned is not None and step.gradient is not None:
            ctx.gradient = fitted(step.gradient, learned.dtype)
        ctx.linear, ctx.slots, ctx.cut = linear, slots, cut
        # Old compilers (torch 2.4) trace no function that returns what it was given.
        return step.objective.clone() if torch.compiler.is_compiling() else step.objective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if not ctx.linear and torch.is_grad_enabled():
            raise RuntimeError("this method's objective is not linear in the losses: no second derivatives through it")
        column = grad.unsqueeze(-1) if grad.dim() else grad
        to_learned = None if ctx.gradient is None else column * ctx.gradient
        if ctx.slots is None:
            return None, to_learned, None, None, None, column * ctx.weights
        # For a cut task an undefined gradient, not a zero: 0 · NaN further down would be NaN.
        each = (column * ctx.weights).unbind(-1)
        to_losses = (None if slot in ctx.cut else each[slot] for slot in ctx.slots)
        return None, to_learned, None, None, None, *to_losses
