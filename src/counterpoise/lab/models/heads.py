"""The small heads of all tasks side by side: one wide hidden layer, of which each task reads its own part."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .silu import silu, silu_and_slope


def wide_heads(
    z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, kept: Tensor | None, *, sparse: bool = False
) -> Tensor:
    """Features (R, n, width) to outputs (R, n, T), before the last bias.

    Args:
        hidden_weight: (R, width, T × size), of all tasks side by side.
        weight: (R, size, T).
        kept: what multiplies the hidden units (dropout).
        sparse: whether the backward pass leaves out the tasks to which no gradient comes.
    """
    if sparse and torch.is_grad_enabled():
        out: Tensor = _Sparse.apply(z, hidden_weight, hidden_bias, weight, kept)  # type: ignore[no-untyped-call]
        return out
    active = silu(torch.baddbmm(hidden_bias, z, hidden_weight))
    return _last(active if kept is None else active * kept, weight)


def _last(active: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = (active.unflatten(-1, (weight.shape[-1], -1)) * weight.mT.unsqueeze(1)).sum(-1)
    return out


class _Sparse(torch.autograd.Function):
    """A gradient-space method asks for one task after the other, and each time all heads but one would multiply zeros.

    Looking for the zeros would be a wait on a device, and vmap cannot: this is for loops on processors.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, kept: Tensor | None
    ) -> Tensor:
        active, slope = silu_and_slope(torch.baddbmm(hidden_bias, z, hidden_weight))
        if kept is not None:
            active, slope = active.mul_(kept), slope.mul_(kept)
        ctx.save_for_backward(z, hidden_weight, weight, active, slope)
        return _last(active, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, hidden_weight, weight, active, slope = ctx.saved_tensors
        asked = gradient.ne(0).flatten(0, 1).any(0).nonzero().flatten().tolist() or [0]
        size = weight.shape[1]
        own = slice(asked[0], asked[-1] + 1)
        wide = slice(own.start * size, own.stop * size)
        gradient, active = gradient[..., own], active[..., wide].unflatten(-1, (-1, size))

        to_hidden = (gradient.unsqueeze(-1) * weight[..., own].mT.unsqueeze(1)).flatten(-2).mul_(slope[..., wide])
        return (
            to_hidden @ hidden_weight[..., wide].mT,
            _placed(z.mT @ to_hidden, hidden_weight.shape, wide),
            _placed(to_hidden.sum(1, keepdim=True), (len(z), 1, hidden_weight.shape[-1]), wide),
            _placed((active * gradient.unsqueeze(-1)).sum(1).mT, weight.shape, own),
            None,
        )


def _placed(part: Tensor, shape: tuple[int, ...], where: slice) -> Tensor:
    """A part of the last dimension, with zeros around it."""
    if part.shape == shape:
        return part
    whole = part.new_zeros(shape)
    whole[..., where] = part
    return whole
