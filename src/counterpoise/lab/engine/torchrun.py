"""One run in several processes: what torchrun says, and who of them writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


def started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def first() -> bool:
    """Whether this process is the one that writes and speaks: outside a group every process is."""
    return not dist.is_initialized() or dist.get_rank() == 0


def meet() -> None:
    """Waits until all processes are here."""
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Joins the group that torchrun describes; a GPU of its own for each process."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
