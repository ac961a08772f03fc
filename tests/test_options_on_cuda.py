"""Options, warnings and gradient-scale methods on CUDA: no synchronisation. Needs only torch and pytest."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def without_synchronisation() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def losses_at(step: int) -> Tensor:
    """Return losses of which the first falls to zero and the second stands still."""
    return torch.tensor([0.9**step, 10.0]).cuda().requires_grad_()


@pytest.mark.parametrize("method", [cp.BPGS, cp.UWO, cp.EMAUWO])
def test_collapse_is_found_asynchronously(method: type[cp.Weighting]) -> None:
    balancer = method(["easy", "hard"]).cuda()
    steps = [losses_at(step) for step in range(400)]
    balancer(steps[0])  # compiles the kernel
    with warnings.catch_warnings(record=True) as caught, without_synchronisation():
        warnings.simplefilter("always")
        for losses in steps:
            balancer(losses).backward()
            torch.cuda._sleep(100_000)  # the device is busy: a copy arrives later
    messages = [str(w.message) for w in caught if w.category is cp.BalanceWarning]
    assert len(messages) == 1
    assert "'easy'" in messages[0]


def test_captured_step_is_not_checked() -> None:
    balancer = cp.UWO(2).cuda()
    losses = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    for _ in range(20):
        balancer(losses).backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(40):  # some of these steps would be checked
            balancer(losses).backward()
    graph.replay()
    torch.cuda.synchronize()


OPTIONS: dict[str, dict[str, Any]] = {
    "importance": {"importance": {"a": 3.0}},
    "fixed": {"fixed": {"l2": 0.1}},
    "memory": {"memory": True},
    "max_ratio": {"max_ratio": 10.0},
}


LOSS_SPACE = [(name, option) for name in ("bpgs", "uw-o", "kendall", "first-loss") for option in OPTIONS]
GRADIENT_SPACE = [
    (name, option) for name in ("pcgrad", "nash-mtl", "upgrad", "cagrad") for option in ("importance", "fixed")
]


@pytest.mark.parametrize(("name", "option"), LOSS_SPACE + GRADIENT_SPACE)
def test_options_do_not_synchronise_and_agree_with_the_cpu(name: str, option: str) -> None:
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Linear(8, 3).to(device)
        balancer = cp.make(name, ["a", "b"], **OPTIONS[option]).to(device)
        x = torch.linspace(-1, 1, 128).view(16, 8).to(device)

        def step(model: nn.Module = model, balancer: cp.Balancer = balancer, x: Tensor = x) -> None:
            model.zero_grad()
            out = model(x).square().mean(0)
            losses = {"a": out[0], "b": 100 * out[1]} | ({"l2": out[2]} if option == "fixed" else {})
            balancer.backward(losses, shared=model.parameters())

        step()
        if device == "cuda":
            with without_synchronisation():
                for _ in range(30):
                    step()
        results.append([parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["grad-normalise", "lra", "ntk", "bpgs"])
def test_gradient_scale_methods_do_not_synchronise(name: str) -> None:
    options: dict[str, Any] = {"statistic": "gradient"} if name == "bpgs" else {}
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Linear(8, 2).to(device)
        balancer = cp.make(name, 2, every=3, **options).to(device)
        x = torch.linspace(-1, 1, 128).view(16, 8).to(device)

        def step(model: nn.Module = model, balancer: cp.Balancer = balancer, x: Tensor = x) -> None:
            model.zero_grad()
            out = model(x)
            losses = out.square().mean(0) * torch.tensor([1.0, 100.0]).to(x, non_blocking=True)
            needs: dict[str, Any] = (
                {"residuals": {"task_0": out[:, 0], "task_1": 10 * out[:, 1]}} if name == "ntk" else {}
            )
            balancer.backward([losses[0], losses[1]], shared=model.parameters(), **needs)

        step()
        if device == "cuda":
            torch.cuda.synchronize()
        for _ in range(4):
            step()
        assert balancer.weights is not None
        results.append(balancer.weights.cpu())
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)
