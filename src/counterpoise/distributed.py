"""The few collectives that balancing needs."""

from __future__ import annotations  # not every build of torch has a ProcessGroup

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .functional import Step
from .functional._masking import result_dtype


def is_active(group: dist.ProcessGroup | None) -> bool:
    """Whether there is anyone to average with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def average_losses(losses: Tensor, counts: Tensor | None, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Averages losses (…, T) over the ranks that have them, in one all-reduce.

    `counts` says how many samples stand behind each loss (default: as many on every rank). Returns the mean, NaN where
    no rank has the task, and this rank's share: the factor on the local gradient after which an average over ranks, as
    DistributedDataParallel takes it, is the gradient of the mean. Both are float64 on every rank: a rank without any
    loss does not know the precision of the others, and state must be the same on all.
    """
    present = torch.isfinite(losses)
    values = torch.where(present, losses, 0.0).to(torch.float64)
    own = present.to(values.dtype) if counts is None else torch.where(present, counts.to(values), 0.0)
    total = torch.stack((values * own, own))
    dist.all_reduce(total, group=group)
    value, count = total.unbind()
    share = dist.get_world_size(group) * own / count.clamp_min(torch.finfo(count.dtype).tiny)
    return value / count, share


def to_comm_device(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """What a rank without any loss brings: nothing told it the device, but NCCL takes no tensor of the CPU."""
    if values.device.type == "cpu" and is_active(group) and dist.get_backend(group) == dist.Backend.NCCL:
        return values.cuda()
    return values


def localize_step(step: Step, share: Tensor, losses: Tensor) -> tuple[Step, Step]:
    """A step on mean losses in the precision of this rank's own, and the same as these see it: weights times share."""
    dtype = result_dtype(losses)
    whole = step._replace(objective=step.objective.to(dtype), weights=step.weights.to(dtype))
    return whole, whole._replace(weights=(step.weights * share).to(dtype))


def average_gradients(parameters: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Averages `.grad` over ranks in one all-reduce; a rank where a parameter has none counts as zero.

    For what a gradient-space balancer leaves to you: call it on the heads (`ranks="exact"`), or on all parameters
    (`ranks="local"`), after `backward`. Does nothing outside a process group.
    """
    if not is_active(group):
        return
    held = [p for p in parameters if p.requires_grad]
    for p in held:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    average_tensors([p.grad for p in held if p.grad is not None], group)


def average_tensors(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Replaces tensors of one or several precisions by their means over ranks, in one all-reduce for each precision."""
    world = dist.get_world_size(group)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        alike = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.flatten() for t in alike])
        dist.all_reduce(flat, group=group)
        parts = flat.div_(world).split([t.numel() for t in alike])
        torch._foreach_copy_(alike, [part.view(t.shape) for part, t in zip(parts, alike, strict=True)])


def world_size(group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(group)


def sum_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum over ranks."""
    dist.all_reduce(tensor, group=group)
    return tensor
