"""Gradient-space methods in process groups: ranks="exact" equals one process on the union batch; DDP and FSDP."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.process_group import run_ranks
from helpers.trunk_and_heads import ALL, TASKS, Net
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp

ROWS, STEPS = 24, 3
pytestmark = pytest.mark.slow

NAMES = ALL
LATER = ["m-config", "modo", "pivrg", "trimmed-mean", "cr-mogm"]
# Methods of every kind, for more than two ranks: random draws, solvers, memories, statistics, sorting, virtual steps.
OF_EVERY_KIND = ["pcgrad", "cagrad", "moco", "excess-mtl", "modo", "trimmed-mean", "auto-lambda"]


def union() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64)
    return x, torch.randn(ROWS, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, -5.0, 0.2])


def labels(case: str, world: int) -> Tensor:
    mask = torch.ones(ROWS, 3, dtype=torch.bool)
    if case in ("absent on some ranks", "uneven counts"):
        mask[: ROWS // world, 1] = False
    if case in ("a rank without labels", "a rank without labels, batched"):
        mask[: ROWS // world] = False
    if case == "uneven counts":
        mask[0, 1] = True
        mask[::3, 2] = False
    return mask


def part_of(rank: int | None, world: int) -> slice:
    return slice(None) if rank is None else slice(rank * ROWS // world, (rank + 1) * ROWS // world)


def masked_losses(z: Tensor, net: Net, y: Tensor, mask: Tensor) -> dict[str, Tensor | None]:
    losses: dict[str, Tensor | None] = {}
    for i, (task, head) in enumerate(net.heads.items()):
        rows = mask[:, i]
        losses[task] = (head(z)[rows, 0] - y[rows, i]).square().mean() if rows.any() else None
    return losses


def train(name: str, case: str, world: int, rank: int | None) -> list[Tensor]:
    """Return weights, gradients and state over a few steps; rank None trains on the union batch."""
    net = Net()
    (x, y), mask, part = union(), labels(case, world), part_of(rank, world)
    x, y, mask = x[part], y[part], mask[part]
    options: dict[str, Any] = {"weighting": cp.BPGS(TASKS)} if case == "hybrid" else {}
    options |= {"passes": "batched"} if "batched" in case else {}
    balancer = cp.make(name, TASKS, **options).double()
    record: list[Tensor] = []
    for step in range(STEPS):
        z = net.trunk(x)
        losses = masked_losses(z, net, y, mask & (case != "a batch without labels" or step != 1))
        net.zero_grad()
        extra: dict[str, Any] = {"counts": mask.sum(0)} if case == "uneven counts" else {}
        if name == "auto-lambda":
            # All ranks have the same weight in a validation loss, so with uneven counts it uses all labels.
            held_out = mask | (case == "uneven counts")
            extra |= {
                "shared": net.parameters(),
                "validation": lambda mask=held_out: masked_losses(net.trunk(x), net, y, mask),
                "training": lambda: masked_losses(net.trunk(x), net, y, mask),
            }
        elif case == "features":
            extra["features"] = z
        else:
            extra["shared"] = net.trunk.parameters()
        if case == "a rank without labels, batched":
            extra["features"] = z
        value = balancer.backward(losses, **extra)
        rest = net.parameters() if case == "features" else net.heads.parameters()
        cp.average_gradients(() if name == "auto-lambda" else rest)
        record += [value, *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters())]
        # In a batch without labels the weights may be None in a group, and zeros in one process.
        without_labels = case == "a batch without labels" and step == 1
        record += [] if balancer.weights is None or without_labels else [balancer.weights]
        state = [t for key, t in balancer.state_dict().items() if case != "features" or "memory" not in key]
        record += [t.clone() for t in state if isinstance(t, Tensor)]
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(torch.zeros_like(p) if p.grad is None else p.grad, alpha=0.02)
    return record


def cases(world: int) -> list[tuple[str, str]]:
    """Return every method with all tasks present, and some methods with the other cases; for more ranks, fewer."""
    few = ["pcgrad", "cagrad", "nash-mtl", "gradnorm-proxy", "excess-mtl"]
    found = [(name, "all present") for name in NAMES]
    found += [(name, case) for name in few for case in ("absent on some ranks", "uneven counts", "hybrid", "batched")]
    found += [(name, "features") for name in ("pcgrad", "mgda", "nash-mtl", "moco", "db-mtl", "excess-mtl", *LATER)]
    found += [(name, "a batch without labels") for name in ("pcgrad", "sdmgrad", "moco", "db-mtl", "gradnorm", *LATER)]
    found += [(name, "a rank without labels") for name in ("cagrad", "moco", "db-mtl", "gradnorm", "mgda", *LATER)]
    found += [(name, "absent on some ranks") for name in LATER]
    found += [("cagrad", "a rank without labels, batched")]
    few = ["all present", "absent on some ranks", "uneven counts", "a batch without labels", "a rank without labels"]
    found += [("auto-lambda", case) for case in few]
    return [(name, case) for name, case in found if world == 2 or name in OF_EVERY_KIND]


def local_mode(rank: int, world: int) -> list[Tensor]:
    """Return the weights and the direction of this rank, and the mean direction."""
    net, (x, y), part = Net(), union(), part_of(rank, world)
    losses: Any = net.losses(x[part], y[part])[0]
    balancer = cp.CAGrad(TASKS, ranks="local")
    balancer.backward(losses, shared=net.trunk.parameters())
    mine = torch.cat([p.grad.flatten() for p in net.trunk.parameters() if p.grad is not None])
    cp.average_gradients(net.parameters())
    mean = torch.cat([p.grad.flatten() for p in net.trunk.parameters() if p.grad is not None])
    assert balancer.weights is not None
    return [balancer.weights, mine, mean]


def own_direction(name: str, ranks: str, lost: bool) -> Tensor:
    """Return the direction of a first step in which the second task may be absent."""
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    second = None if lost else 5 * w[1] - w[0]
    cp.make(name, 3, ranks=ranks).double().backward([w[0].square() + w[1], second, w[2].exp()], shared=[w])
    return torch.zeros(3) if w.grad is None else w.grad


def no_task_counts(rank: int) -> list[Tensor]:
    """Return the gradient of steps in which only one rank has losses, with weight or count 0."""
    w = torch.ones(1, 2, requires_grad=True)
    least = cp.CAGrad(2, weighting=cp.Static(2, weights=[0.0, 1.0]))
    least.backward([w[0, 0], None] if rank == 0 else [None, None], shared=[w])
    stacked = cp.CAGrad(2, batch_shape=(1,))
    given = [w[:, 0], w[:, 1]] if rank == 0 else [None, None]
    stacked.backward(given, shared=[w], counts=torch.zeros(1, 2))
    return [torch.zeros_like(w) if w.grad is None else w.grad]


class Whole(torch.nn.Module):
    """A network whose forward returns all losses, as DDP and FSDP require."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return self.net.losses(x, y)[0]


def train_with_ddp(rank: int, world: int, ranks: str) -> list[Tensor]:
    """Train with DDP. Each parameter gets T gradients, so no_sync is needed; the balancer averages the shared ones."""
    whole, (x, y), part = Whole(), union(), part_of(rank, world)
    ddp = DistributedDataParallel(whole)
    balancer = cp.CAGrad(TASKS, ranks=ranks, weighting=cp.BPGS(TASKS))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([{"params": whole.parameters()}, *balancer.param_groups()], lr=0.02)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            losses = ddp(x[part], y[part])
            balancer.backward(losses, shared=whole.net.trunk.parameters())
        cp.average_gradients(whole.net.heads.parameters() if ranks == "exact" else whole.parameters())
        optimizer.step()
    return [p.detach() for p in (*whole.parameters(), *balancer.parameters())]


def train_with_fsdp(rank: int, world: int, *, absent: bool = False) -> list[Tensor]:
    """Train with FSDP. Parameters stay gathered until the last pass; FSDP averages the gradient of each task.

    With an absent task only the trunk is sharded, because FSDP needs the same gradients on every rank.
    """
    whole, (x, y), part = Whole(), union(), part_of(rank, world)
    mesh = init_device_mesh("cpu", (world,))
    sharded: Any = whole.net.trunk if absent else whole
    fully_shard(sharded, mesh=mesh)
    sharded.set_reshard_after_backward(False)
    shared = list(whole.net.trunk.parameters())  # the shards; after forward the modules hold gathered copies
    balancer = cp.CAGrad(TASKS, weighting=cp.BPGS(TASKS))
    optimizer = torch.optim.SGD([{"params": whole.parameters()}, *balancer.param_groups()], lr=0.02, foreach=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses: dict[str, Tensor | None] = {**whole(x[part], y[part])}
        if absent and rank == 0:
            losses[TASKS[1]] = None
        balancer.backward(losses, shared=shared)
        cp.average_gradients(whole.net.heads.parameters() if absent else ())
        sharded.reshard()
        optimizer.step()
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in (*whole.parameters(), *balancer.parameters())]
    return [p.detach() for p in found]


class WithFeatures(Whole):
    """Returns the representation too, for gradients that are compared there."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.net.losses(x, y)


def norms_at_features(rank: int | None, world: int) -> list[Tensor]:
    """Train with gradient norms at the features, on sharded parameters; rank None trains on the union batch."""
    whole, (x, y), part = WithFeatures(), union(), part_of(rank, world)
    sharded: Any = whole
    if rank is not None:
        fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    balancer = cp.LRA(TASKS, every=2).double()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.02, foreach=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses, z = whole(x[part], y[part])
        balancer.backward(losses, features=z)
        optimizer.step()
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in whole.parameters()]
    return [balancer.task_weights, *(p.detach() for p in found)]


def sharding_errors(world: int) -> dict[str, str]:
    """Return the error messages of methods and options that do not support sharded parameters."""
    whole, (x, y) = Whole(), union()
    sharded: Any = whole
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    sharded.set_reshard_after_backward(False)
    shared = list(whole.net.trunk.parameters())
    found: dict[str, str] = {}
    for name, options in UNSUPPORTED:
        balancer, extra = cp.make(name, TASKS, **options), dict[str, Any]()
        losses = whole(x, y)
        if name == "auto-lambda":
            extra |= dict.fromkeys(("validation", "training"), lambda: whole(x, y))
        try:
            balancer.backward(losses, shared=shared, **extra)
        except ValueError as error:
            found[f"{name} {options}"] = str(error)
        sharded.reshard()
    try:
        cp.PCGrad(TASKS).backward(whole(x, y), shared=shared, features=torch.ones(2, requires_grad=True))
    except ValueError as error:
        found["features"] = str(error)
    sharded.reshard()
    return found


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("moco", "db-mtl", "graddrop", "auto-lambda", "m-config", "modo", "trimmed-mean", "lra")),
    ("pcgrad", {"heads": "aggregated"}),
    ("pcgrad", {"passes": "batched"}),
    *((name, {}) for name in ("excess-mtl", "gradnorm-proxy")),  # heads are aggregated by default
]


def worker(rank: int, world: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    results: dict[Any, Any] = {key: train(*key, world, rank) for key in cases(world)}
    results["local"] = local_mode(rank, world)
    results["local, absent"] = {name: own_direction(name, "local", lost=rank == 1) for name in NAMES}
    results["no task"] = no_task_counts(rank)
    results["ddp exact"], results["ddp local"] = (train_with_ddp(rank, world, ranks) for ranks in ("exact", "local"))
    results["fsdp"], results["fsdp, absent"] = (train_with_fsdp(rank, world, absent=absent) for absent in (False, True))
    results["fsdp, features"] = norms_at_features(rank, world)
    results["sharding errors"] = sharding_errors(world)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcome() -> tuple[int, list[dict[Any, Any]]]:
    world = 2
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(worker, world, folder)
        return world, [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def test_exact_mode_equals_the_union_batch(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    world, ranks = outcome
    for key in cases(world):
        whole = train(*key, world, None)
        for rank in ranks:
            assert len(rank[key]) == len(whole), key
            for mine, first, expected in zip(rank[key], ranks[0][key], whole, strict=True):
                torch.testing.assert_close(mine, first, rtol=0, atol=0, equal_nan=True, msg=str(key))
                torch.testing.assert_close(mine, expected, rtol=1e-7, atol=1e-9, equal_nan=True, msg=str(key))


def test_local_mode_averages_the_directions_of_the_ranks(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    world, ranks = outcome
    mean = torch.stack([rank["local"][1] for rank in ranks]).mean(0)
    for rank, result in enumerate(ranks):
        net, (x, y), part = Net(), union(), part_of(rank, world)
        balancer = cp.CAGrad(TASKS)
        balancer.backward(net.losses(x[part], y[part])[0], shared=net.trunk.parameters())
        torch.testing.assert_close(result["local"][0], balancer.weights)
        torch.testing.assert_close(result["local"][2], mean)


def test_local_mode_ignores_tasks_absent_on_a_rank(
    outcome: tuple[int, list[dict[Any, Any]]],
) -> None:
    _, ranks = outcome
    for name in NAMES:
        if name not in ("graddrop", "moco", "excess-mtl"):  # these draw random numbers or use the losses of all ranks
            expected = own_direction(name, "exact", lost=True)
            torch.testing.assert_close(ranks[1]["local, absent"][name], expected, msg=name)
        assert all(torch.isfinite(rank["local, absent"][name]).all() for rank in ranks), name


def test_step_without_any_counted_task_finishes_on_all_ranks(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    assert all(not grad.any() for rank in outcome[1] for grad in rank["no task"])


def single_process(ranks: str, mask: Tensor) -> list[Tensor]:
    net, (x, y) = Net(), union()
    balancer = cp.CAGrad(TASKS, weighting=cp.BPGS(TASKS), ranks=ranks)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([{"params": net.parameters()}, *balancer.param_groups()], lr=0.02)
    for _ in range(STEPS):
        optimizer.zero_grad()
        balancer.backward(masked_losses(net.trunk(x), net, y, mask), shared=net.trunk.parameters())
        optimizer.step()
    return [p.detach() for p in (*net.parameters(), *balancer.parameters())]


@pytest.mark.parametrize("recipe", ["ddp exact", "fsdp", "fsdp, absent"])
def test_ddp_and_fsdp_train_like_one_process(recipe: str, outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    world, ranks = outcome
    expected = single_process("exact", labels("absent on some ranks" if "absent" in recipe else "", world))
    for rank in ranks:
        for mine, whole in zip(rank[recipe], expected, strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-5, atol=1e-6)


def test_norms_at_the_features_of_sharded_networks(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    world, ranks = outcome
    expected = norms_at_features(None, world)
    for rank in ranks:
        for mine, whole in zip(rank["fsdp, features"], expected, strict=True):
            torch.testing.assert_close(mine, whole)


def test_unsupported_sharding_raises_errors(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    """The errors are raised on every rank before any backward pass, so that training can continue."""
    for rank in outcome[1]:
        messages = rank["sharding errors"]
        for name in ("MoCo", "DBMTL", "GradDrop", "AutoLambda", "MConFIG", "MoDo", "TrimmedMean"):
            assert f"{name} does not support sharded parameters (FSDP)" in messages.values()
        assert "pass features= instead, or use cp.GradNorm" in messages["lra {}"]
        for key in ("pcgrad {'heads': 'aggregated'}", "excess-mtl {}"):
            assert "pass heads='own'" in messages[key]
        for key in ("pcgrad {'passes': 'batched'}", "features"):
            assert "support neither features= nor passes='batched'" in messages[key]


def test_local_mode_with_ddp_agrees_across_ranks(outcome: tuple[int, list[dict[Any, Any]]]) -> None:
    _, ranks = outcome
    start = [p.detach() for p in Net().parameters()]
    for rank in ranks:
        for mine, first in zip(rank["ddp local"], ranks[0]["ddp local"], strict=True):
            torch.testing.assert_close(mine, first, rtol=0, atol=0)
        assert any(not torch.equal(a, b) for a, b in zip(start, rank["ddp local"], strict=False))
