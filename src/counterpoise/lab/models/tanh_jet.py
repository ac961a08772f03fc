"""The hyperbolic tangent of a function together with its directional derivatives."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_ORDER = 4
FUSED_ORDER = 2  # up to this order, the backward pass is written by hand
SHAPES = 64  # compiled versions of the kernels: one for each number of points, directions and networks

Orders = tuple[int, ...]
"""The highest order of derivative along each direction."""


def channel_count(orders: Orders) -> int:
    """Return the number of channels of a jet: the value, and the derivatives of order 1, 2, … along each direction."""
    return 1 + sum(orders)


def tanh_jet(z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
    """Return the jet of tanh(f + bias) from the jet of a function f.

    Args:
        z: the jet of f, (R, C, N, H). Channel 0 is the value, followed by the derivatives along the first direction in
            the order 1, 2, …, then those along the second direction, and so on.
        bias: added to the value, (R, 1, H).
        orders: the highest order along each direction, at most 4.

    Returns:
        The jet of tanh(f + bias), in the same layout.
    """
    if max(orders, default=0) <= FUSED_ORDER:
        out: Tensor = _TanhJet.apply(z, bias, orders)  # type: ignore[no-untyped-call]
        return out
    return _high_order(z, bias, orders)


class _TanhJet(torch.autograd.Function):
    """A jet up to second order. The backward pass needs one kernel instead of one for each operation."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
        out = _kernel(_forward, z)(z, bias, orders)
        ctx.save_for_backward(z, out)
        ctx.orders = orders
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        z, out = ctx.saved_tensors
        grad_z = _kernel(_backward, z)(grad, z, out, ctx.orders)
        return grad_z, grad_z[:, 0].sum(1, keepdim=True), None


def _forward(z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
    t = torch.tanh(z[:, 0] + bias)
    slope = 1 - t * t
    parts, channel = [t], 1
    for order in orders:
        if order:
            first = z[:, channel]
            product = slope * first
            parts.append(product)
            if order == FUSED_ORDER:
                parts.append(slope * z[:, channel + 1] - 2 * t * first * product)
        channel += order
    return torch.stack(parts, 1)


def _backward(grad: Tensor, z: Tensor, out: Tensor, orders: Orders) -> Tensor:
    t = out[:, 0]
    slope = 1 - t * t
    value = grad[:, 0]
    parts, channel = [], 1
    for order in orders:
        if order:
            first, g1 = z[:, channel], grad[:, channel]
            along = g1 * first
            grad_first = g1
            if order == FUSED_ORDER:
                g2 = grad[:, channel + 1]
                along = along + g2 * z[:, channel + 1]
                product = g2 * first
                grad_first = g1 - 4 * t * product
                value = value - (2 - 6 * t * t) * product * first
            value = value - 2 * t * along
            parts.append(slope * grad_first)
            if order == FUSED_ORDER:
                parts.append(slope * grad[:, channel + 1])
        channel += order
    return torch.stack([slope * value, *parts], 1)


def _high_order(z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
    """Apply Faà di Bruno's formula; the backward pass is that of autograd."""
    t = torch.tanh(z[:, 0] + bias)
    square = t * t
    d1 = 1 - square
    d2, d3, d4 = -2 * t * d1, d1 * (6 * square - 2), d1 * t * (16 - 24 * square)
    parts, channel = [t], 1
    for order in orders:
        z1, z2, z3, z4 = (z[:, channel + i] if i < order else None for i in range(MAX_ORDER))
        if z1 is not None:
            parts.append(d1 * z1)
        if z1 is not None and z2 is not None:
            parts.append(d1 * z2 + d2 * z1 * z1)
            if z3 is not None:
                parts.append(d1 * z3 + 3 * d2 * z1 * z2 + d3 * z1**3)
                if z4 is not None:
                    mixed = d2 * (4 * z1 * z3 + 3 * z2 * z2) + 6 * d3 * z1 * z1 * z2
                    parts.append(d1 * z4 + mixed + d4 * z1**4)
        channel += order
    return torch.stack(parts, 1)


_compiled: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}


def _kernel(function: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """Return a function compiled to a single kernel on CUDA, and the function itself elsewhere.

    COUNTERPOISE_COMPILE=0 disables compilation. If compilation fails, the function runs eagerly from then on.
    """
    if not like.is_cuda or os.environ.get("COUNTERPOISE_COMPILE") == "0":
        return function
    if function not in _compiled:
        _allow_many_shapes()
        compiled = torch.compile(function, dynamic=False)

        def with_fallback(*inputs: Any) -> Tensor:
            try:
                return compiled(*inputs)
            except Exception as error:
                warnings.warn(f"could not compile {function.__name__}, which now runs eagerly: {error}", stacklevel=2)
                _compiled[function] = function
                return function(*inputs)

        _compiled[function] = with_fallback
    return _compiled[function]


def _allow_many_shapes() -> None:
    import torch._dynamo.config as dynamo  # not at the top: importing the compiler takes a second

    settings: Any = dynamo
    for name in ("recompile_limit", "cache_size_limit"):  # the name depends on the version of torch
        if hasattr(settings, name):
            setattr(settings, name, max(getattr(settings, name), SHAPES))


def derivative_channels(orders: Sequence[int]) -> list[list[int]]:
    """Return, for each direction, the channels of the derivatives of order 1, 2, …"""
    channels, first = [], 1
    for order in orders:
        channels.append(list(range(first, first + order)))
        first += order
    return channels
