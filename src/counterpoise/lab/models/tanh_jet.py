"""The hyperbolic tangent of a function together with its directional derivatives."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_ORDER = 4
SHAPES = 64  # compiled versions of the kernels: one for each number of points, units and directions

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
    out: Tensor = _TanhJet.apply(z, bias, orders)  # type: ignore[no-untyped-call]
    return out


class _TanhJet(torch.autograd.Function):
    """Both passes are written by hand, so that each can be compiled to a single kernel."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
        out = _kernel(_forward if max(orders, default=0) <= 2 else _forward_high, z)(z, bias, orders)
        ctx.save_for_backward(z, out)
        ctx.orders = orders
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        z, out = ctx.saved_tensors
        backward = _backward if max(ctx.orders, default=0) <= 2 else _backward_high
        grad_z = _kernel(backward, z)(grad, z, out, ctx.orders)
        return grad_z, grad_z[:, 0].sum(1, keepdim=True), None


def _forward(z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
    """Return the jet up to second order."""
    t = torch.tanh(z[:, 0] + bias)
    slope = 1 - t * t
    parts, channel = [t], 1
    for order in orders:
        if order:
            first = z[:, channel]
            product = slope * first
            parts.append(product)
            if order == 2:
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
            if order == 2:
                g2 = grad[:, channel + 1]
                along = along + g2 * z[:, channel + 1]
                product = g2 * first
                grad_first = g1 - 4 * t * product
                value = value - (2 - 6 * t * t) * product * first
            value = value - 2 * t * along
            parts.append(slope * grad_first)
            if order == 2:
                parts.append(slope * grad[:, channel + 1])
        channel += order
    return torch.stack([slope * value, *parts], 1)


def _forward_high(z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
    """Return the jet up to fourth order, by Faà di Bruno's formula."""
    t = torch.tanh(z[:, 0] + bias)
    d1, d2, d3, d4, _ = _tanh_derivatives(t)
    parts, channel = [t], 1
    for order in orders:
        z1, z2, z3, z4 = _padded(z, channel, order)
        along = [
            d1 * z1,
            d1 * z2 + d2 * z1 * z1,
            d1 * z3 + 3 * d2 * z1 * z2 + d3 * z1 * z1 * z1,
            d1 * z4 + d2 * (4 * z1 * z3 + 3 * z2 * z2) + 6 * d3 * z1 * z1 * z2 + d4 * z1 * z1 * z1 * z1,
        ]
        parts += along[:order]
        channel += order
    return torch.stack(parts, 1)


def _backward_high(grad: Tensor, z: Tensor, out: Tensor, orders: Orders) -> Tensor:
    t = out[:, 0]
    d1, d2, d3, d4, d5 = _tanh_derivatives(t)
    value = d1 * grad[:, 0]
    parts, channel = [], 1
    for order in orders:
        z1, z2, z3, z4 = _padded(z, channel, order)
        g1, g2, g3, g4 = _padded(grad, channel, order)
        square = z1 * z1
        cubic = d4 * square * z1
        value = value + g1 * d2 * z1 + g2 * (d2 * z2 + d3 * square) + g3 * (d2 * z3 + 3 * d3 * z1 * z2 + cubic)
        mixed = d3 * (4 * z1 * z3 + 3 * z2 * z2) + 6 * d4 * square * z2
        value = value + g4 * (d2 * z4 + mixed + d5 * square * square)
        first = g1 * d1 + 2 * g2 * d2 * z1 + 3 * g3 * (d2 * z2 + d3 * square)
        along = [
            first + 4 * g4 * (d2 * z3 + 3 * d3 * z1 * z2 + cubic),
            g2 * d1 + 3 * g3 * d2 * z1 + 6 * g4 * (d2 * z2 + d3 * square),
            g3 * d1 + 4 * g4 * d2 * z1,
            g4 * d1,
        ]
        parts += along[:order]
        channel += order
    return torch.stack([value, *parts], 1)


def _tanh_derivatives(t: Tensor) -> tuple[Tensor, ...]:
    """Return the derivatives of tanh of the orders 1 to 5 from its value."""
    square = t * t
    d1 = 1 - square
    return (
        d1,
        -2 * t * d1,
        d1 * (6 * square - 2),
        d1 * t * (16 - 24 * square),
        d1 * (16 - 120 * square + 120 * square * square),
    )


def _padded(jet: Tensor, channel: int, order: int) -> list[Tensor]:
    """Return the derivatives of order 1 to 4 along a direction, 0 above its highest order."""
    zero = jet.new_zeros(())
    return [jet[:, channel + i] if i < order else zero for i in range(MAX_ORDER)]


_compiled: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}


def _kernel(function: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """Return a function compiled to a single kernel on CUDA, and the function itself elsewhere.

    COUNTERPOISE_COMPILE=0 disables compilation. If compilation fails, the function runs eagerly from then on.
    """
    if not like.is_cuda or os.environ.get("COUNTERPOISE_COMPILE") == "0":
        return function
    if function not in _compiled:
        from torch._dynamo import maybe_mark_dynamic  # not at the top: importing the compiler takes a second

        _allow_many_shapes()
        compiled = torch.compile(function, dynamic=False)

        def with_fallback(*inputs: Any) -> Tensor:
            for value in inputs:
                if isinstance(value, Tensor):
                    maybe_mark_dynamic(value, 0)  # compiling again for another number of networks takes long
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
