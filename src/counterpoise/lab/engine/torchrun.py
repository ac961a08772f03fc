"""Training one run in several processes that torchrun has started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


def started_by_torchrun() -> bool:
    """Return whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_main_process() -> bool:
    """Return whether this process writes files and messages. Outside a process group, every process does."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    """Wait until all processes of the group have reached this call."""
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the process group of torchrun. On CUDA, each process uses its own GPU."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
