"""SiLU with a cheap backward pass on the CPU.

`torch.nn.functional.silu` recomputes an exponential in every backward pass. Gradient-space methods run one backward
pass per task, so the derivative is stored in the forward pass instead: on a CPU this makes a backward pass three to
four times faster. Results differ from torch's in the last digit, and the recorded results were computed with this
version.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def silu(x: Tensor) -> Tensor:
    """Return x σ(x). On a CPU, the backward pass is a single multiplication."""
    if x.is_cuda or not torch.is_grad_enabled():
        return F.silu(x)
    out: Tensor = _SiLU.apply(x)  # type: ignore[no-untyped-call]
    return out


def silu_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x σ(x) and its derivative σ(x) + x σ(x) (1 − σ(x))."""
    sigmoid = torch.sigmoid(x)
    out = x * sigmoid
    return out, torch.addcmul(sigmoid, out, 1 - sigmoid)


class _SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, derivative = silu_and_derivative(x)
        ctx.save_for_backward(derivative)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return gradient * derivative  # type: ignore[no-any-return]
