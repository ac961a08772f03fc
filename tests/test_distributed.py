"""Process groups: every rank computes the weights of one process on the union batch."""

import copy
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.process_group import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp

TASKS, ROWS, STEPS = ["a", "b", "c"], 24, 3
NAMES = [name for name in cp.methods("loss") if name != "dtp"]
# Methods of every kind, for more than two ranks: learned and random weights, epoch means, running means, updates.
OF_EVERY_KIND = ["bpgs", "cov-weighting", "dwa", "famo", "kendall", "rlw", "uw-so"]


def data() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 30.0, 0.1])
    torch.manual_seed(0)
    return nn.Linear(5, 3).double(), x, y


def task_losses(
    model: nn.Module, x: Tensor, y: Tensor, labelled: Tensor, empty: float | None = None
) -> tuple[dict[str, Tensor | None], Tensor]:
    """Return the mean squared error of each task over its labelled rows, and the number of these rows.

    A task without labelled rows has the loss None, or `empty` if given.
    """
    errors = (model(x) - y).square()
    losses: dict[str, Tensor | None] = {}
    for i, task in enumerate(TASKS):
        rows = labelled[:, i]
        missing = None if empty is None else errors[:, i].mean() * 0 + empty
        losses[task] = errors[rows, i].mean() if rows.any() else missing
    return losses, labelled.sum(0)


def labels(case: str, world: int) -> Tensor:
    """Return which rows of the union batch have a label of which task."""
    mask = torch.ones(ROWS, 3, dtype=torch.bool)
    if case in ("absent on some ranks", "no samples on some ranks"):
        mask[: ROWS // world, 1] = False
    elif case.startswith("a rank without losses"):
        mask[: ROWS // world] = False
    elif case == "absent everywhere":
        mask[:, 1] = False
    elif case == "uneven counts":
        mask[: ROWS // world, 1] = False
        mask[0, 1] = True
        mask[::3, 2] = False
    return mask


def train(name: str, case: str, world: int, rank: int | None) -> list[Any]:
    """Return weights, objective, network gradient and state of a few steps; on the union batch if rank is None."""
    model, x, y = data()
    mask = labels(case, world)
    if rank is not None:
        part = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        x, y, mask = x[part], y[part], mask[part]
    alone = rank is None or case.startswith("a rank without losses")  # DDP waits for gradients from every rank
    network: nn.Module = model if alone else DistributedDataParallel(model)
    balancer = cp.make(name, TASKS)
    float32_state = case == "a rank without losses, float32 state"
    if not float32_state:
        balancer.double()
    optimizer = torch.optim.SGD([{"params": model.parameters()}, *balancer.param_groups()], lr=1e-3)
    empty = 7.0 if case == "no samples on some ranks" else None
    record: list[Any] = []
    for _ in range(STEPS):
        losses, counts = task_losses(network, x, y, mask, empty)
        optimizer.zero_grad()
        given_counts = counts if case in ("uneven counts", "no samples on some ranks") else None
        value = balancer(losses, counts=given_counts)
        value.backward()
        cp.average_gradients(model.parameters() if alone and rank is not None else ())
        floats = any(t.is_floating_point() for t in balancer.state_dict().values())
        # A rank without losses knows the precision only from its state.
        if floats or not case.startswith("a rank without losses"):
            record += [] if float32_state else [balancer.weights, value.detach()]
        record += [] if float32_state else [copy.deepcopy(p.grad) for p in model.parameters()]
        optimizer.step()
        with torch.no_grad():
            balancer.step_end(task_losses(model, x, y, mask, empty)[0], counts=given_counts)
        balancer.epoch_end()
        record += [t.detach().clone() for t in (*balancer.parameters(), *balancer.buffers())]
    return record


def names(world: int) -> list[str]:
    return NAMES if world == 2 else OF_EVERY_KIND


def worker(rank: int, world: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results = {(name, case): train(name, case, world, rank) for name in names(world) for case in CASES}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


CASES = [
    *("all present", "absent on some ranks", "no samples on some ranks", "absent everywhere", "uneven counts"),
    *("a rank without losses", "a rank without losses, float32 state"),
]


@cache
def outcomes(world: int) -> list[dict[tuple[str, str], list[Any]]]:
    """Return what each rank of a process group computed."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(worker, world, folder)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("world", "name"),
    [(2, name) for name in names(2)] + [pytest.param(4, name, marks=pytest.mark.slow) for name in names(4)],
)
def test_ranks_agree_with_each_other_and_with_the_union_batch(world: int, name: str, case: str) -> None:
    ranks, union = outcomes(world), train(name, case, world, None)
    for rank in ranks:
        for mine, first in zip(rank[name, case], ranks[0][name, case], strict=True):
            torch.testing.assert_close(mine, first, rtol=0, atol=0, equal_nan=True)
        rtol, atol = (1e-5, 1e-5) if "float32" in case else (1e-9, 1e-12)
        for mine, whole in zip(rank[name, case], union, strict=True):
            torch.testing.assert_close(mine, whole, rtol=rtol, atol=atol, equal_nan=True)
