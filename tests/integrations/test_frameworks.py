"""`balancer.loss` in Accelerate and Fabric, with accumulation and bfloat16, compared with a plain loop."""

from typing import Any

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped, unused-ignore]
from accelerate.state import AcceleratorState, GradientState, PartialState  # type: ignore[import-untyped, unused-ignore]
from helpers.comparison import assert_same_state
from lightning.fabric import Fabric
from torch import Tensor, nn

import counterpoise as cp

TASKS = ["a", "b"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fixed": {"fixed": {"l2": 0.01}},
    "importance": {"importance": {"a": 3.0}},
    "memory": {"memory": True},
}
CASES = [("upgrad", "fixed"), *((method, options) for method in ("bpgs", "hybrid") for options in OPTIONS)]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.trunk(x)
        losses = {t: (h(z) - 20.0**i).square().mean() for i, (t, h) in enumerate(self.heads.items())}
        return losses | {"l2": z.square().mean()}


def make_balancer(method: str, options: str) -> cp.Balancer:
    if method == "hybrid":
        return cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS), **OPTIONS[options])
    return cp.make(method, TASKS, **OPTIONS[options])


def select(losses: dict[str, Tensor], options: str, step: int) -> dict[str, Tensor]:
    """Leave out losses that the balancer does not take, and a task in every second batch with memory."""
    names = [*TASKS, "l2"] if options == "fixed" else TASKS
    if options == "memory" and step % 2:
        names = ["b"]
    return {name: losses[name] for name in names}


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 4, generator=generator) for _ in range(8)]


def train_plain(method: str, options: str, accumulate: int = 1, bfloat16: bool = False) -> tuple[nn.Module, nn.Module]:
    network, balancer = Network(), make_balancer(method, options)
    optimizer = torch.optim.SGD([{"params": network.parameters()}, *balancer.param_groups()], lr=0.01)
    for step, x in enumerate(batches()):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            losses = select(network(x), options, step)
        (balancer.loss(losses, shared=network.trunk.parameters()) / accumulate).backward()
        if step % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return network, balancer


@pytest.fixture(autouse=True)
def _reset_accelerate() -> None:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("bfloat16", [False, True])
def test_accelerate_with_accumulation(method: str, options: str, bfloat16: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16" if bfloat16 else "no")
    network, balancer = Network(), make_balancer(method, options)
    optimizer = torch.optim.SGD([{"params": network.parameters()}, *balancer.param_groups()], lr=0.01)
    prepared, optimizer = accelerator.prepare(network, optimizer)
    for step, x in enumerate(batches()):
        with accelerator.accumulate(prepared):
            losses = select(prepared(x), options, step)
            accelerator.backward(balancer.loss(losses, shared=network.trunk.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    tolerance = 0.02 if bfloat16 else 1e-6
    for ours, theirs in zip((network, balancer), train_plain(method, options, 2, bfloat16), strict=True):
        assert_same_state(ours, theirs, tolerance)


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("bfloat16", [False, True])
def test_fabric(method: str, options: str, bfloat16: bool) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if bfloat16 else "32-true")
    network, balancer = Network(), make_balancer(method, options)
    groups = [{"params": network.parameters()}, *balancer.param_groups()]
    prepared, optimizer = fabric.setup(network, torch.optim.SGD(groups, lr=0.01))
    for step, x in enumerate(batches()):
        losses = select(prepared(x), options, step)
        fabric.backward(balancer.loss(losses, shared=network.trunk.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    tolerance = 0.02 if bfloat16 else 1e-6
    for ours, theirs in zip((network, balancer), train_plain(method, options, 1, bfloat16), strict=True):
        assert_same_state(ours, theirs, tolerance)
