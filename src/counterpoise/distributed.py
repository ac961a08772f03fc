"""Collective operations: averaging losses and gradients over ranks."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from .functional import Step
from .functional._masking import output_dtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup as ProcessGroup
else:  # builds of torch without distributed support do not have the class
    ProcessGroup = getattr(dist, "ProcessGroup", object)


def is_active(group: ProcessGroup | None) -> bool:
    """Return whether a process group with more than one rank is initialised."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def average_losses(losses: Tensor, counts: Tensor | None, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Average losses (…, T) over the ranks that have them, in one all-reduce.

    Args:
        losses: the losses of this rank, NaN for absent tasks.
        counts: number of samples behind each loss; None if it is the same on every rank.
        group: the process group.

    Returns:
        The mean, NaN for tasks that no rank has; and this rank's share, a factor on the local gradient. With it, the
        average of the gradients over ranks, as DistributedDataParallel computes it, is the gradient of the mean. Both
        are float64 on every rank, because a rank without losses does not know the precision of the others and the
        state must be identical on all.
    """
    present = torch.isfinite(losses)
    values = torch.where(present, losses, 0.0).to(torch.float64)
    own = present.to(values.dtype) if counts is None else torch.where(present, counts.to(values), 0.0)
    total = torch.stack((values * own, own))
    dist.all_reduce(total, group=group)
    value, count = total.unbind()
    share = dist.get_world_size(group) * own / count.clamp_min(torch.finfo(count.dtype).tiny)
    return value / count, share


def to_comm_device(values: Tensor, group: ProcessGroup | None) -> Tensor:
    """Move losses to the device of the process group.

    NCCL needs CUDA tensors, but a rank without losses has its placeholders on the CPU.
    """
    if values.device.type == "cpu" and is_active(group) and dist.get_backend(group) == dist.Backend.NCCL:
        return values.cuda()
    return values


def localise_step(step: Step, share: Tensor, losses: Tensor) -> tuple[Step, Step]:
    """Convert a step on mean losses to the precision of this rank's losses.

    Returns:
        The step, and the step for the local losses, whose weights are multiplied by this rank's share.
    """
    dtype = output_dtype(losses)
    whole = step._replace(objective=step.objective.to(dtype), weights=step.weights.to(dtype))
    return whole, whole._replace(weights=(step.weights * share).to(dtype))


def average_gradients(parameters: Iterable[Tensor], group: ProcessGroup | None = None) -> None:
    """Average `.grad` over ranks in one all-reduce per dtype.

    A gradient-space balancer averages only the gradients that it compares. After its `backward`, call this function on
    the parameters of the heads (`ranks="exact"`) or on all parameters (`ranks="local"`).

    Args:
        parameters (iterable of Tensor): The parameters. On a rank where one has no gradient, its gradient counts as 0.
        group (ProcessGroup, optional): The process group; `None` selects the default group. Default: `None`.

    Returns:
        None: The gradients are replaced in place. Without an initialised process group nothing happens.

    Example:
        >>> import counterpoise as cp
        >>> head = torch.nn.Linear(4, 1)
        >>> head(torch.ones(4)).sum().backward()
        >>> cp.average_gradients(head.parameters())
    """
    if not is_active(group):
        return
    trainable = [p for p in parameters if p.requires_grad]
    for p in trainable:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    average_tensors([p.grad for p in trainable if p.grad is not None], group)


def average_tensors(tensors: Sequence[Tensor], group: ProcessGroup | None) -> None:
    """Replace tensors by their means over ranks, in one all-reduce per dtype."""
    world = dist.get_world_size(group)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        same_dtype = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.flatten() for t in same_dtype])
        dist.all_reduce(flat, group=group)
        parts = flat.div_(world).split([t.numel() for t in same_dtype])
        torch._foreach_copy_(same_dtype, [part.view(t.shape) for part, t in zip(parts, same_dtype, strict=True)])


def world_size(group: ProcessGroup | None) -> int:
    """Return the number of ranks."""
    return dist.get_world_size(group)


def max_over_ranks(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the maximum over ranks, computed in place."""
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return tensor


def sum_over_ranks(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum over ranks, computed in place."""
    dist.all_reduce(tensor, group=group)
    return tensor
