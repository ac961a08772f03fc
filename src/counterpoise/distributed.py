"""The few collectives that balancing needs."""

from __future__ import annotations  # not every build of torch has a ProcessGroup

import torch
import torch.distributed as dist
from torch import Tensor

from .functional.masking import result_dtype


def active(group: dist.ProcessGroup | None) -> bool:
    """Whether there is anyone to average with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def average(losses: Tensor, counts: Tensor | None, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Averages losses (…, T) over the ranks that have them, in one all-reduce.

    `counts` says how many samples stand behind each loss (default: as many on every rank). Returns the mean, NaN where
    no rank has the task, and this rank's share: the factor on the local gradient after which an average over ranks, as
    DistributedDataParallel takes it, is the gradient of the mean.
    """
    present = torch.isfinite(losses)
    values = torch.where(present, losses, 0.0).to(torch.float64)
    own = present.to(values.dtype) if counts is None else torch.where(present, counts.to(values.dtype), 0.0)
    total = torch.stack((values * own, own))
    dist.all_reduce(total, group=group)
    value, count = total.unbind()
    share = dist.get_world_size(group) * own / count.clamp_min(torch.finfo(count.dtype).tiny)
    return (value / count).to(result_dtype(losses)), share
