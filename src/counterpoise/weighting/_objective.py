"""The autograd node that connects the objective of a loss-space method with the losses."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..functional import Step
from ..functional._masking import clamp_to_dtype


class Objective(torch.autograd.Function):
    """Return the value of an objective whose derivatives are known.

    In the backward pass the losses get the weights of the step and the learned parameter gets its gradient, each
    multiplied by the incoming gradient. A GradScaler's factor or a division by accumulation steps therefore reaches
    both. The backward pass raises an error if no present loss has a graph.
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
        """Store the derivatives. `slots` is the task of each input (None: one input holds all tasks), `cut` the tasks
        that get no gradient."""
        # These are constants, not inputs or outputs: plain attributes are cheaper and need no version check.
        ctx.weights, ctx.gradient = step.weights, step.gradient
        if learned is not None and step.gradient is not None and step.gradient.dtype != learned.dtype:
            ctx.gradient = clamp_to_dtype(step.gradient, learned.dtype)
        ctx.linear, ctx.slots, ctx.cut = linear, slots, cut
        # The compiler of torch 2.4 cannot trace a function that returns one of its arguments.
        return step.objective.clone() if torch.compiler.is_compiling() else step.objective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if not ctx.linear:
            refuse_second_derivatives()
        if not torch.compiler.is_compiling():
            _check_graph(ctx.needs_input_grad[5:], ctx.weights)
        column = grad.unsqueeze(-1) if grad.dim() else grad
        to_learned = None if ctx.gradient is None else column * ctx.gradient
        if ctx.slots is None:
            return None, to_learned, None, None, None, column * ctx.weights
        # A cut task gets an undefined gradient instead of zero, because 0 · NaN in its graph would be NaN.
        each = (column * ctx.weights).unbind(-1)
        to_losses = (None if slot in ctx.cut else each[slot] for slot in ctx.slots)
        return None, to_learned, None, None, None, *to_losses


def connect(vector: Tensor, derivatives: Tensor, value: Tensor, linear: bool) -> Tensor:
    """Return the value as the inner product of a vector and its derivatives, by native operations."""
    objective = vector.dot(derivatives)
    objective.data = value
    if not linear:  # native operations would get second derivatives wrong
        objective.grad_fn.register_prehook(refuse_second_derivatives)  # type: ignore[union-attr]
    return objective


def refuse_second_derivatives(*_: object) -> None:
    """Raise an error in a backward pass that records a graph; also a hook of a node."""
    if torch.is_grad_enabled():
        raise RuntimeError("this method's objective is not linear in the losses: no second derivatives through it")


def _check_graph(have_graph: tuple[bool, ...], weights: Tensor) -> None:
    """Raise an error if no loss has a graph, so that only the learned parameter would be trained."""
    if have_graph and not any(have_graph) and bool((weights != 0).any()):  # constants may stand for absent tasks
        raise RuntimeError(
            "no loss has a graph: the losses were detached, or computed under torch.no_grad(), so that backward() "
            "would not train the network. Pass the losses as the network returns them, without .detach() or .item()"
        )


def no_loss_has_a_graph(values: Tensor, inputs: Sequence[Tensor], counts: Tensor | None) -> bool:
    """Whether all tasks are absent and none has a graph: no loss was given, or only constants without samples."""
    if not inputs:
        return True
    if counts is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if any(loss.requires_grad for loss in inputs):
        return False
    return not bool(torch.isfinite(values).any())
