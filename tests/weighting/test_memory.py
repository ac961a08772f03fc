"""memory=True: batches that have only some of the tasks are balanced like batches that have all of them."""

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.process_group import run_ranks
from torch import Tensor

import counterpoise as cp

BALANCED = ["bpgs", "uw-o", "ema-uw-o", "dwa", "gls"]
SCALES = {"a": 1.0, "b": 1000.0}


def noisy(task: str, batch: int) -> Tensor:
    """Return a loss that is constant up to 5 % of noise."""
    generator = torch.Generator().manual_seed(2 * batch + (task == "b"))
    return SCALES[task] * (1 + 0.05 * (2 * torch.rand((), generator=generator) - 1))


def make(name: str, **options: Any) -> tuple[cp.Balancer, torch.optim.Optimizer | None]:
    balancer = cp.make(name, list(SCALES), **options)
    groups = balancer.param_groups(lr=1e-4)
    return balancer, torch.optim.Adam(groups) if groups else None


def step(balancer: cp.Balancer, optimizer: torch.optim.Optimizer | None, losses: dict[str, Tensor]) -> Tensor:
    value = balancer({task: loss.requires_grad_() for task, loss in losses.items()})
    value.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    assert balancer.weights is not None
    return balancer.weights


def round_robin(balancer: cp.Balancer, optimizer: torch.optim.Optimizer | None, first: int, last: int) -> Tensor:
    """Train on batches that have one task in turn; return the last weights of both tasks."""
    found = torch.zeros(2)
    for batch in range(first, last):
        task = "ab"[batch % 2]
        weights = step(balancer, optimizer, {task: noisy(task, batch)})
        assert weights[1 - batch % 2] == 0
        found[batch % 2] = weights[batch % 2]
        if batch % 20 == 19:
            balancer.epoch_end()
    return found


@pytest.mark.parametrize("name", BALANCED)
def test_round_robin_reaches_the_ratio_of_the_joint_loop_in_100_batches(name: str) -> None:
    joint, joint_optimizer = make(name)
    for batch in range(100):
        expected = step(joint, joint_optimizer, {task: noisy(task, batch) for task in SCALES})
        if batch % 20 == 19:
            joint.epoch_end()
    found = round_robin(*make(name, memory=True), 0, 100)
    torch.testing.assert_close(found[0] / found[1], expected[0] / expected[1], rtol=0.1, atol=0)
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0)


@pytest.mark.parametrize("name", ["bpgs", "gls"])
def test_without_memory_a_lone_task_is_not_balanced(name: str) -> None:
    found = round_robin(*make(name), 0, 100)
    joint = step(*make(name), {task: noisy(task, 0) for task in SCALES})
    found, joint = found / found.sum(), joint / joint.sum()
    assert not torch.allclose(found, joint, rtol=0.5, atol=0)


@pytest.mark.parametrize("name", [name for name in cp.methods("loss") if not cp.describe(name).needs] + ["dwa"])
def test_resumed_round_robin_is_bit_identical(name: str) -> None:
    straight, resumed = make(name, memory=True), make(name, memory=True)
    interrupted = make(name, memory=True)
    expected = round_robin(*straight, 0, 40)
    round_robin(*interrupted, 0, 23)
    resumed[0].load_state_dict(copy.deepcopy(interrupted[0].state_dict()))
    if resumed[1] is not None and interrupted[1] is not None:
        resumed[1].load_state_dict(copy.deepcopy(interrupted[1].state_dict()))
    assert torch.equal(round_robin(*resumed, 23, 40), expected)
    for key, value in straight[0].state_dict().items():
        torch.testing.assert_close(resumed[0].state_dict()[key], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_memory_changes_nothing_if_all_tasks_are_present(name: str, replicas: tuple[int, ...]) -> None:
    plain, remembering = cp.make(name, 3, batch_shape=replicas), cp.make(name, 3, batch_shape=replicas, memory=True)
    assert set(remembering.state_dict()) - set(plain.state_dict()) == {"recent"}
    needs = {"kpis": [0.9, 0.5, 0.2]} if name == "dtp" else {}
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        losses = torch.rand(*replicas, 3, generator=generator) + 0.1
        values = [balancer(losses.clone().requires_grad_(), **needs) for balancer in (plain, remembering)]
        assert torch.equal(*values)
        assert torch.equal(plain.weights, remembering.weights)  # type: ignore[arg-type]
        for balancer in (plain, remembering):
            balancer.step_end(0.9 * losses)
            balancer.epoch_end()


def test_remembered_losses_are_running_means_that_only_training_steps_change() -> None:
    balancer = cp.UWO(["a", "b"], memory=True)
    balancer({"a": torch.tensor(2.0)})
    balancer({"a": torch.tensor(4.0)})
    recent = 0.9 * 2.0 + 0.1 * 4.0
    torch.testing.assert_close(balancer.recent, torch.tensor([recent, torch.nan]), equal_nan=True)
    with torch.no_grad():
        balancer({"b": torch.tensor(5.0)})
    balancer.eval()
    balancer({"b": torch.tensor(5.0)})
    torch.testing.assert_close(balancer.recent, torch.tensor([recent, torch.nan]), equal_nan=True)
    balancer.train()
    x = torch.tensor(5.0, requires_grad=True)
    balancer({"a": x * torch.nan, "b": x}).backward()
    torch.testing.assert_close(x.grad, torch.tensor(0.2))
    torch.testing.assert_close(balancer.weights, torch.tensor([0.0, 0.2]))
    balancer.reset()
    assert bool(torch.isnan(balancer.recent).all())  # type: ignore[arg-type]


def test_bpgs_calibrates_again_when_a_task_first_appears() -> None:
    joint, remembering = cp.BPGS(3), cp.BPGS(3, memory=True)
    losses = torch.tensor([1.0, 1000.0, 0.01])
    joint(losses)
    for slot in range(3):
        remembering([loss if k == slot else None for k, loss in enumerate(losses)])
    torch.testing.assert_close(remembering.theta, joint.theta, rtol=1e-5, atol=1e-6)
    assert bool(remembering.calibrated.all())
    remembering(losses * 2)  # no new task: θ stays
    torch.testing.assert_close(remembering.theta, joint.theta, rtol=1e-5, atol=1e-6)


def test_gradient_of_a_remembered_task_is_zero() -> None:
    balancer = cp.BPGS(["a", "b", "c"], memory=True)
    for losses in ([1.0, 30.0, 5.0], [2.0, torch.nan, 5.0]):
        balancer.zero_grad()
        balancer(torch.tensor(losses, requires_grad=True)).backward()
    assert balancer.theta.grad is not None
    assert balancer.theta.grad[1] == 0
    assert balancer.theta.grad[0] != 0


def test_replicas_remember_their_own_losses() -> None:
    stack = cp.BPGS(2, batch_shape=2, memory=True)
    alone = [cp.BPGS(2, memory=True) for _ in range(2)]
    nan = torch.nan
    for losses in ([[1.0, nan], [3.0, 4.0]], [[nan, 50.0], [nan, 2.0]], [[2.0, nan], [nan, nan]]):
        stack(torch.tensor(losses))
        for row, balancer in enumerate(alone):
            balancer(torch.tensor(losses[row]))
            torch.testing.assert_close(stack.weights[row], balancer.weights)  # type: ignore[index]
            torch.testing.assert_close(stack.theta[row], balancer.theta)


def test_memory_of_a_weighting_in_gradient_space() -> None:
    shared = torch.tensor([1.0, 2.0], requires_grad=True)
    balancer = cp.PCGrad(["a", "b"], weighting=cp.UWO(["a", "b"], normalise=True), memory=True)
    assert balancer.weighting is not None
    assert balancer.weighting.memory
    balancer.backward({"a": shared.sum()}, shared=[shared])
    shared.grad = None
    balancer.backward({"b": 3 * shared[1]}, shared=[shared])
    torch.testing.assert_close(shared.grad, torch.tensor([0.0, 1.0]))  # 3 · (1/6) / (1/3 + 1/6)
    kept = cp.UWO(2, memory=True)
    kept(torch.tensor([1.0, 2.0]))
    cp.PCGrad(2, weighting=kept, memory=True)
    torch.testing.assert_close(kept.recent, torch.tensor([1.0, 2.0]))
    with pytest.warns(cp.BalanceWarning, match="memory=True has no effect on PCGrad without weighting="):
        cp.PCGrad(2, memory=True)


def distributed_run(rank: int | None, world: int) -> list[Tensor]:
    """Train on batches in which every rank has another task, or none; rank None has the tasks of all ranks."""
    balancer, record = cp.BPGS(["a", "b"], memory=True, fixed={"l2": 0.5}).double(), []
    optimizer = torch.optim.SGD(balancer.param_groups(lr=1e-3))
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def losses(batch: int) -> dict[str, Tensor]:
        mine = {"ab"[r]: SCALES["ab"[r]] * (1 + 0.1 * batch) * x[r] for r in range(2) if rank in (r, None)}
        if batch in (1, 4):  # only rank 0 has a task
            mine.pop("b", None)
        return {**mine, "l2": x.square().sum()}

    for batch in range(6):
        x.grad = None
        balancer(losses(batch)).backward()
        assert x.grad is not None
        if rank is not None:
            dist.all_reduce(x.grad)
            x.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        assert balancer.weights is not None
        record += [balancer.weights, x.grad.clone(), balancer.theta.detach().clone()]
    evaluate = balancer.closure(lambda: balancer(losses(6)).backward())
    for _ in range(2):  # the second evaluation uses the weights of the first, on all ranks
        x.grad = None
        evaluate()
        if rank is not None:
            dist.all_reduce(x.grad)
            x.grad.div_(world)  # type: ignore[attr-defined]
        record.append(x.grad.clone())  # type: ignore[attr-defined]
    return record


def worker(rank: int, world: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.save((distributed_run(rank, world), gradient_space_run(rank, world)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def gradient_space_run(rank: int | None, world: int) -> list[Tensor]:
    """Combine gradients with a fixed loss that only one rank has."""
    w = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    balancer = cp.PCGrad(["a", "b"], fixed={"l2": 0.5}, importance={"a": 3.0})
    record: list[Tensor] = []
    ranks = range(world) if rank is None else [rank]
    for fixed_on in (0, 1):
        w.grad = None
        targets = torch.tensor([[3.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)[list(ranks)]
        losses: dict[str, Any] = {"a": (w - targets).square().mean(), "b": ((w + targets) * targets).mean()}
        if fixed_on in ranks:
            losses["l2"] = w.square().sum() / (1 if rank is not None else world)  # the mean over ranks
        balancer.backward(losses, shared=[w])
        assert balancer.weights is not None
        assert w.grad is not None
        record += [w.grad.clone(), balancer.weights]
    return record


def test_ranks_with_different_tasks_agree_with_one_process() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(worker, 2, folder)
        ranks = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    expected = distributed_run(None, 1), gradient_space_run(None, 2)
    for rank in ranks:
        for found, whole in zip(rank[0] + rank[1], expected[0] + expected[1], strict=True):
            torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)
