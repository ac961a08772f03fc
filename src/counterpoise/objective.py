"""The one autograd node that every loss-space balancer puts on top of the losses."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .functional import Step


class Route(NamedTuple):
    """How gradients travel from the objective to the losses."""

    slots: tuple[int, ...] | None  # the task of each input; None: one input, the whole vector
    cut: frozenset[int]  # tasks that get no gradient at all
    linear: bool  # whether the weights are constants of the losses


class Objective(torch.autograd.Function):
    """Returns the value of an objective whose derivatives are known.

    The losses get the step's weights, the learned coordinates its gradient, each times the incoming gradient: a
    GradScaler's factor or a division by accumulation steps reaches both. Nothing is recomputed and nothing cancels.
    """

    @staticmethod
    def forward(ctx: Any, step: Step, route: Route, learned: Tensor | None, *inputs: Tensor) -> Tensor:
        # Constants, neither inputs nor outputs: they need no version check, and plain attributes are cheaper.
        ctx.weights, ctx.gradient, ctx.route = step.weights, step.gradient, route
        return step.objective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        slots, cut, linear = ctx.route
        if not linear and torch.is_grad_enabled():
            raise RuntimeError("this method's objective is not linear in the losses: no second derivatives through it")
        column = grad.unsqueeze(-1) if grad.dim() else grad
        to_learned = None if ctx.gradient is None else column * ctx.gradient
        if slots is None:
            return None, None, to_learned, column * ctx.weights
        # For a cut task an undefined gradient, not a zero: 0 · NaN further down would be NaN.
        to_losses = (column * ctx.weights).unbind(-1)
        return None, None, to_learned, *(None if slot in cut else to_losses[slot] for slot in slots)
