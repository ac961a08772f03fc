"""Starts the processes of a process group."""

import contextlib
import multiprocessing
import os
import runpy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

PRELOADED = ["counterpoise.lab.engine.executors", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"]


def run_ranks(function: Callable[..., None], world: int, *arguments: Any) -> None:
    """Call `function(rank, world, *arguments)` in `world` new processes and wait for them.

    They are forked from a process that has imported the module of the function, which is itself forked from a server
    that has imported torch. Importing them in every process would take seconds.
    """
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(PRELOADED)
        start_processes(_fork_ranks, (function, world, *arguments), nprocs=1, start_method="forkserver")
    else:
        start_processes(function, (world, *arguments), nprocs=world, start_method="spawn")


def _fork_ranks(_: int, function: Callable[..., None], world: int, *arguments: Any) -> None:
    start_processes(function, (world, *arguments), nprocs=world, start_method="fork")


def run_script(script: Path, world: int = 2) -> list[str]:
    """Run a script as torchrun would, and return what each rank printed. The output is kept beside the script."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(_run_script, world, str(script), port)
    return [script.with_suffix(f".{rank}").read_text() for rank in range(world)]


def _run_script(rank: int, world: int, script: str, port: int) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    os.chdir(Path(script).parent)
    with Path(script).with_suffix(f".{rank}").open("w") as output, contextlib.redirect_stdout(output):
        runpy.run_path(script, run_name="__main__")
