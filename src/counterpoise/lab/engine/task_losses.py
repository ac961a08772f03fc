"""Balancers on losses whose task gradients are known.

If the losses of a network depend on disjoint inputs, one reverse pass gives the gradient of every task. A balancer then
sees losses that are linear in a parameter with just these gradients, so that methods of all spaces run as they are,
without another pass through the network.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import counterpoise as cp

from .balancer_groups import BalancerGroups


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
    balancers: BalancerGroups, value: Tensor, losses: Tensor, gradients: Tensor, residuals: Residuals
) -> Tensor:
    """Return the gradient (R, P) that the balancers give the network, and add those of their own parameters.

    Unlike `BalancerGroups.backward`, this allows any mixture of methods in one batch of runs.

    Args:
        balancers: the balancers of R runs.
        value: the parameters of the network, (R, P).
        losses: the losses, (R, T).
        gradients: the gradients of each task, (R, T, P).
        residuals: returns the residuals of some networks, for methods that need them.
    """
    parts = [tensor.split(balancers.sizes) for tensor in (value, losses, gradients)]
    found, first = [], 0
    for balancer, part, values, grads in zip(balancers.members(), *parts, strict=True):
        parameter = part.detach().requires_grad_()
        rows = slice(first, first + len(part))
        needs = {"residuals": residuals(parameter, rows)} if _needs_residuals(balancer) else {}
        balancer.backward(linear_losses(parameter, values, grads), shared=[parameter], **needs)
        assert parameter.grad is not None, "every method gives the shared parameters a gradient"
        found.append(parameter.grad)
        first += len(part)
    return torch.cat(found)


def _needs_residuals(balancer: cp.Balancer) -> bool:
    """Return whether NTK measures in this step, alone or before a gradient-space method."""
    weighting = getattr(balancer, "weighting", None) or balancer
    return isinstance(weighting, cp.NTK) and bool(weighting.schedule.held)
