"""The heads of all tasks as one wide hidden layer, of which each task uses its own columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .silu import silu, silu_and_derivative


def apply_heads(
    z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, mask: Tensor | None, *, sparse: bool = False
) -> Tensor:
    """Map features (R, n, width) to outputs (R, n, T), without the bias of the output layer.

    Args:
        z: the features.
        hidden_weight: the hidden layers of all tasks side by side, (R, width, T × size).
        hidden_bias: their biases, (R, 1, T × size).
        weight: the output layers, (R, size, T).
        mask: factors of the hidden units (dropout).
        sparse: whether the backward pass skips tasks whose gradient is 0.
    """
    if sparse and torch.is_grad_enabled():
        out: Tensor = _SparseHeads.apply(z, hidden_weight, hidden_bias, weight, mask)  # type: ignore[no-untyped-call]
        return out
    active = silu(torch.baddbmm(hidden_bias, z, hidden_weight))
    return _output_layer(active if mask is None else active * mask, weight)


def _output_layer(active: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = (active.unflatten(-1, (weight.shape[-1], -1)) * weight.mT.unsqueeze(1)).sum(-1)
    return out


class _SparseHeads(torch.autograd.Function):
    """Heads whose backward pass skips tasks without gradient.

    A gradient-space method differentiates one task at a time, so all other heads would multiply zeros. Finding the
    zeros would synchronise with a GPU and is not possible under vmap, so this is for loops over tasks on a CPU.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, mask: Tensor | None
    ) -> Tensor:
        active, derivative = silu_and_derivative(torch.baddbmm(hidden_bias, z, hidden_weight))
        if mask is not None:
            active, derivative = active.mul_(mask), derivative.mul_(mask)
        ctx.save_for_backward(z, hidden_weight, weight, active, derivative)
        return _output_layer(active, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, hidden_weight, weight, active, derivative = ctx.saved_tensors
        nonzero = gradient.ne(0).flatten(0, 1).any(0).nonzero().flatten().tolist() or [0]
        size = weight.shape[1]
        tasks = slice(nonzero[0], nonzero[-1] + 1)
        units = slice(tasks.start * size, tasks.stop * size)
        gradient, active = gradient[..., tasks], active[..., units].unflatten(-1, (-1, size))

        hidden = (gradient.unsqueeze(-1) * weight[..., tasks].mT.unsqueeze(1)).flatten(-2).mul_(derivative[..., units])
        return (
            hidden @ hidden_weight[..., units].mT,
            _embed(z.mT @ hidden, hidden_weight.shape, units),
            _embed(hidden.sum(1, keepdim=True), (len(z), 1, hidden_weight.shape[-1]), units),
            _embed((active * gradient.unsqueeze(-1)).sum(1).mT, weight.shape, tasks),
            None,
        )


def _embed(part: Tensor, shape: tuple[int, ...], columns: slice) -> Tensor:
    """Return a tensor of zeros with `part` in the given columns."""
    if part.shape == shape:
        return part
    embedded = part.new_zeros(shape)
    embedded[..., columns] = part
    return embedded
