"""Layers of physics-informed networks on CUDA, as single kernels with hand-written backward passes.

The first layer is evaluated from the points, and the last activation is contracted with the output weights, so that
their jets need not be stored. A step of hundreds of small networks is limited by memory bandwidth.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import pinn_triton as kernels
from .tanh_jet import Orders, channel_count

BLOCK = 1024  # elements of a jet's channel per program
ROWS = 16  # points per program, in kernels that add up over points or units


def _orders(orders: Orders) -> dict[str, int]:
    o0, o1 = (*orders, 0, 0)[:2]
    return {"channels": channel_count(orders), "o0": o0, "o1": o1}


def _tile(width: int) -> dict[str, int]:
    return {"rows": ROWS, "units": triton.next_power_of_2(width)}


class Activation(torch.autograd.Function):
    """tanh of a jet (R, C, N, H) plus a bias (R, 1, H)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, orders: Orders) -> Tensor:
        out, plane = torch.empty_like(z), z.shape[2] * z.shape[3]
        grid = (triton.cdiv(plane, BLOCK), len(z))
        kernels.activation[grid](z, bias, out, plane, z.shape[3], **_orders(orders), block=BLOCK)
        ctx.save_for_backward(z, out)
        ctx.orders = orders
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        z, out = ctx.saved_tensors
        result, plane = torch.empty_like(z), z.shape[2] * z.shape[3]
        grid = (triton.cdiv(plane, BLOCK), len(z))
        options = _orders(ctx.orders)
        kernels.activation_backward[grid](grad.contiguous(), z, out, result, plane, **options, block=BLOCK)
        return result, result[:, 0].sum(1, keepdim=True), None


class InputLayer(torch.autograd.Function):
    """The jet (R, C, N, H) of tanh(x·weight + bias) at points x (R, N, 2), with slopes (R, K, H) along K directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slopes: Tensor, bias: Tensor, orders: Orders) -> Tensor:
        (runs, points, _), width = x.shape, weight.shape[2]
        out = x.new_empty(runs, channel_count(orders), points, width)
        grid = (triton.cdiv(points * width, BLOCK), runs)
        options = _orders(orders) | {"directions": len(orders), "block": BLOCK}
        kernels.input_layer[grid](x, weight, slopes, bias, out, points * width, width, **options)
        ctx.save_for_backward(x, slopes, out)
        ctx.orders = orders
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None]:
        x, slopes, out = ctx.saved_tensors
        runs, _, points, width = out.shape
        directions, parts = len(ctx.orders), triton.cdiv(points, ROWS)
        sums = x.new_empty(runs, parts, 3 + directions, width)
        options = _orders(ctx.orders) | {"directions": directions} | _tile(width)
        kernels.input_layer_backward[(parts, runs)](grad.contiguous(), out, x, slopes, sums, points, width, **options)
        total = sums.sum(1)
        return None, total[:, 1:3], total[:, 3:], total[:, :1], None


class OutputLayer(torch.autograd.Function):
    """The jet (R, C, N) of tanh(z + bias)·weight, for z (R, C, N, H), a bias (R, 1, H) and a weight (R, H, 1)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, weight: Tensor, orders: Orders) -> Tensor:
        runs, channels, points, width = z.shape
        out = z.new_empty(runs, channels, points)
        grid = (triton.cdiv(points, ROWS), runs)
        kernels.output_layer[grid](z, bias, weight, out, points, width, **_orders(orders), **_tile(width))
        ctx.save_for_backward(z, bias, weight)
        ctx.orders = orders
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        z, bias, weight = ctx.saved_tensors
        runs, _, points, width = z.shape
        parts = triton.cdiv(points, ROWS)
        result, sums = torch.empty_like(z), z.new_empty(runs, parts, 2, width)
        options = _orders(ctx.orders) | _tile(width)
        inputs = (grad.contiguous(), z, bias, weight, result, sums)
        kernels.output_layer_backward[(parts, runs)](*inputs, points, width, **options)
        total = sums.sum(1)
        return result, total[:, :1], total[:, 1].unsqueeze(-1), None


def uniform_draws(seeds: Tensor, step: Tensor, count: int) -> Tensor:
    """Draw (R, count) numbers uniformly from (0, 1) in one kernel: `functional.uniform`, rounded to float32."""
    out = torch.empty(len(seeds), count, device=seeds.device)
    grid = (triton.cdiv(count, BLOCK), len(seeds))
    kernels.uniform_draws[grid](seeds, step, out, count, block=BLOCK)
    return out
