"""SiLU, x σ(x), where its backward pass comes often: one exponential costs a processor fifteen multiplications."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def silu(x: Tensor) -> Tensor:
    """As torch's; on a processor the slope is kept, and a backward pass only multiplies."""
    if x.is_cuda or not torch.is_grad_enabled():
        return F.silu(x)
    out: Tensor = _SiLU.apply(x)  # type: ignore[no-untyped-call]
    return out


def silu_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """x σ(x), and its derivative σ(x) + x σ(x) (1 − σ(x))."""
    share = torch.sigmoid(x)
    out = x * share
    return out, torch.addcmul(share, out, 1 - share)


class _SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, slope = silu_and_slope(x)
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return gradient * slope  # type: ignore[no-any-return]
