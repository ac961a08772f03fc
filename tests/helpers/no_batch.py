"""An operation without a batching rule."""

from typing import Any

import torch
from torch import Tensor


class NoBatch(torch.autograd.Function):
    """An operation that vmap does not support."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grads[0].sum().item()  # not allowed under vmap
        return grads[0]
