"""Layers for a network that several processes train together, each on its slice of one batch.

What depends on the whole batch is that of the whole batch: statistics of batch normalisation are summed over ranks, and
dropout draws for all images and keeps the rank's own. So the processes together are one process on the union of their
slices. (torch's SyncBatchNorm does not run on a CPU; this one runs everywhere.)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ..metrics.task_types import wide


class _Sum(torch.autograd.Function):
    """The sum over ranks; so is its derivative."""

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
    return _Sum.apply(value)  # type: ignore[no-any-return, no-untyped-call]


class SynchronisedBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation over the slices of all ranks; the gradient flows through their common statistics."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training:
            return super().forward(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        x = wide(input)
        count = torch.full((1,), x.numel() // x.shape[1], device=x.device, dtype=x.dtype)
        # Two rounds rather than E[x²] − E[x]²: the difference of two large numbers loses its digits.
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
        found: Tensor = centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return found.to(input.dtype)


class SynchronisedDropout2d(nn.Dropout2d):
    """Drops whole channels; all ranks, which must draw from equal streams, draw for the union batch."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training or self.p == 0:
            return input
        own = len(input)
        ones = torch.ones(own * dist.get_world_size(), input.shape[1], 1, 1, device=input.device, dtype=input.dtype)
        drawn = F.dropout2d(ones, self.p)
        start = own * dist.get_rank()
        return input * drawn[start : start + own]


def synchronise_layers(network: nn.Module) -> nn.Module:
    """Replaces batch normalisation and dropout by those of the union batch, in place."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm2d:
                union = SynchronisedBatchNorm2d(child.num_features, child.eps, child.momentum or 0.1)
                union.load_state_dict(child.state_dict())
                setattr(module, name, union)
            elif type(child) is nn.Dropout2d:
                setattr(module, name, SynchronisedDropout2d(child.p))
    return network
