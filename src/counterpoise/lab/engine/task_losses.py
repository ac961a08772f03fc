"""Balancers on losses whose task gradients are known.

If the losses of a network depend on disjoint inputs, one reverse pass gives the gradient of every task. A balancer then
sees losses that are linear in a parameter with just these gradients, so that methods of all spaces run as they are,
without another pass through the network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import counterpoise as cp

from ...gradients import TaskGradients
from .balancer_groups import BalancerGroups
from .cuda_graphs import Branches


class _LinearLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradients,) = ctx.saved_tensors
        return torch.bmm(grad.unsqueeze(1), gradients).squeeze(1), None, None


def linear_losses(parameter: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
    """Return losses (R, T) with the given values, whose gradients with respect to the parameter (R, P) are given.

    Args:
        parameter: a leaf that requires a gradient.
        values: the losses, (R, T).
        gradients: the gradients of each task, (R, T, P).
    """
    losses: Tensor = _LinearLosses.apply(parameter, values, gradients)  # type: ignore[no-untyped-call]
    return losses


Residuals = Callable[[Tensor, slice], Mapping[str, Tensor]]
"""Returns the residuals of each task from the parameters (R, P) of the networks in some rows of the batch."""


def balanced_gradient(
    balancers: BalancerGroups,
    value: Tensor,
    losses: Tensor,
    gradients: Tensor,
    residuals: Residuals,
    heads: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the gradient (R, P) that the balancers give the network, and add those of their own parameters.

    Unlike `BalancerGroups.backward`, this allows any mixture of methods in one batch of runs.

    Args:
        balancers: the balancers of R runs.
        value: the parameters of the network, (R, P).
        losses: the losses, (R, T).
        gradients: the gradients of each task, (R, T, P).
        residuals: returns the residuals of some networks, for methods that need them.
        heads: the parameters (R, Q) that are not shared, and the gradients (R, T, Q) of each task. The result is then
            (R, P + Q).
    """
    weights: list[Tensor] = []
    combined: list[tuple[slice, list[Tensor]]] = []
    first, branches = 0, Branches(value.device)
    parts = [tensor.split(balancers.sizes) for tensor in (value, losses, gradients, *(heads or ()))]
    for balancer, part, values, grads, *own in zip(balancers.members(), *parts, strict=True):
        rows, measured = slice(first, first + len(part)), _needs_residuals(balancer)
        first = rows.stop
        with branches.next():
            if isinstance(balancer, cp.Weighting) and not measured:
                weights.append(_weigh(balancer, part, values, grads))
                continue
            weights.append(torch.zeros_like(values))
            leaf = part.detach().requires_grad_()
            needs = {"residuals": residuals(leaf, rows)} if measured else {}
            combined.append((rows, _combine(balancer, leaf, values, grads, own, needs)))
    branches.join()
    row_weights = torch.cat(weights).unsqueeze(1)
    total = [torch.bmm(row_weights, tensor).squeeze(1) for tensor in (gradients, *(heads or ())[1:])]
    for rows, found in combined:
        for direction, grad in zip(total, found, strict=True):
            direction[rows] = grad
    return total[0] if heads is None else torch.cat(total, 1)


@torch.no_grad()
def _weigh(balancer: cp.Weighting, value: Tensor, losses: Tensor, gradients: Tensor) -> Tensor:
    """Return the weights (R, T) of a training step of a loss-space method, and set the gradient of its parameter.

    This is `Weighting.backward` without autograd: the derivative of its objective by the losses is known.
    """
    if balancer.measures_gradients and balancer.schedule.is_due():
        rows: list[Any] = [[grad] for grad in gradients.unbind(1)]
        balancer.renew(TaskGradients([value], tuple(range(len(rows))), rows, [[] for _ in rows], []))
    step, _ = balancer.take_step(losses, None, True)
    balancer.record(step.weights, losses, None, True)
    if balancer.learned is not None:
        balancer.learned.grad = step.gradient
    return step.weights


def _combine(
    balancer: cp.Balancer,
    leaf: Tensor,
    losses: Tensor,
    gradients: Tensor,
    heads: Sequence[Tensor],
    needs: Mapping[str, Any],
) -> list[Tensor]:
    """Return what `Balancer.backward` adds to the gradient of the shared parameters and of the heads."""
    leaves, task_losses = [leaf], linear_losses(leaf, losses, gradients)
    if heads:
        leaves.append(heads[0].detach().requires_grad_())
        task_losses = task_losses + linear_losses(leaves[1], torch.zeros_like(losses), heads[1])
    balancer.backward(task_losses, shared=leaves[:1], **needs)
    assert all(leaf.grad is not None for leaf in leaves), "every method gives all parameters a gradient"
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def _needs_residuals(balancer: cp.Balancer) -> bool:
    """Return whether NTK measures in this step, alone or before a gradient-space method."""
    weighting = getattr(balancer, "weighting", None) or balancer
    return isinstance(weighting, cp.NTK) and bool(weighting.schedule.held)
