"""Starts the processes of a process group."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import start_processes

PRELOADED = ["counterpoise.lab.engine.executors", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"]


def run_ranks(function: Callable[..., None], world: int, *arguments: Any) -> None:
    """Call `function(rank, world, *arguments)` in `world` new processes and wait for them.

    They are forked from a server that has imported torch once, which takes seconds in a spawned process.
    """
    method = "spawn"
    if "forkserver" in multiprocessing.get_all_start_methods():
        method = "forkserver"
        multiprocessing.set_forkserver_preload(PRELOADED)
    start_processes(function, (world, *arguments), nprocs=world, start_method=method)
