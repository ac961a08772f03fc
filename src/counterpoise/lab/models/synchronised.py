"""Batch normalisation and dropout for a network that several processes train on slices of one batch.

The statistics of batch normalisation are summed over all ranks. Dropout draws a mask for the whole batch on every rank,
and each rank uses its own slice. The result equals that of one process on the whole batch. torch's SyncBatchNorm does
not run on a CPU, and torch has no synchronised dropout.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ..metrics.task_types import at_least_float32


class _AllReduceSum(torch.autograd.Function):
    """A sum over ranks, whose backward pass is also a sum over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


def all_reduce(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks, differentiably."""
    return _AllReduceSum.apply(value)  # type: ignore[no-any-return, no-untyped-call]


class SynchronisedBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation over the batches of all ranks. Gradients flow through the common statistics."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training:
            return super().forward(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        x = at_least_float32(input)
        count = torch.full((1,), x.numel() // x.shape[1], device=x.device, dtype=x.dtype)
        # Two reductions instead of E[x²] − E[x]², which suffers from cancellation.
        total, count = all_reduce(torch.cat((x.sum((0, 2, 3)), count))).split([x.shape[1], 1])
        mean = total / count
        centred = x - mean.view(1, -1, 1, 1)
        variance = all_reduce(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            momentum = 0.1 if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        out: Tensor = centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out.to(input.dtype)


class SynchronisedDropout2d(nn.Dropout2d):
    """Dropout of channels. All ranks draw the mask of the whole batch, from equal random streams."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training or self.p == 0:
            return input
        size = len(input)
        ones = torch.ones(size * dist.get_world_size(), input.shape[1], 1, 1, device=input.device, dtype=input.dtype)
        mask = F.dropout2d(ones, self.p)
        start = size * dist.get_rank()
        return input * mask[start : start + size]


def synchronise_layers(network: nn.Module) -> nn.Module:
    """Replace batch normalisation and dropout by their synchronised versions, in place."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm2d:
                replacement = SynchronisedBatchNorm2d(child.num_features, child.eps, child.momentum or 0.1)
                replacement.load_state_dict(child.state_dict())
                setattr(module, name, replacement)
            elif type(child) is nn.Dropout2d:
                setattr(module, name, SynchronisedDropout2d(child.p))
    return network
