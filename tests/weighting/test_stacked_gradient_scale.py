"""Weightings from gradient norms on a stack of networks: replicas, held schedules, CUDA graphs."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp

REPLICAS = 3
TASKS = ["residual", "boundary"]
METHODS: dict[str, Callable[..., Any]] = {
    "grad-normalise": cp.GradNormalise,
    "lra": cp.LRA,
    "ntk": cp.NTK,
    "bpgs": lambda tasks, **options: cp.BPGS(tasks, statistic="gradient", **options),
}
WITH_GRADNORM = METHODS | {"gradnorm": lambda tasks, every, **options: cp.GradNorm(tasks, **options)}  # in every step
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def networks(device: str = "cpu") -> list[Tensor]:
    """Return the parameters (R, …) of networks with one hidden layer. The last has one number per network."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 8), (1, 8), (8, 1), ()]
    drawn = [torch.randn(REPLICAS, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [parameter.to(device).requires_grad_() for parameter in drawn]


def residuals(parameters: list[Tensor]) -> dict[str, Tensor]:
    """Return the residuals (…, n) of one network or of a stack."""
    weight, bias, out, shift = parameters
    points = torch.linspace(-1, 1, 6, device=weight.device, dtype=weight.dtype).unsqueeze(-1)
    u = (torch.tanh(points @ weight + bias) @ out).squeeze(-1)
    return {"residual": 30 * (u - shift.unsqueeze(-1)), "boundary": u[..., :2] - 1}


def step(balancer: cp.Balancer, parameters: list[Tensor], rate: float = 1e-3) -> None:
    """Run a backward pass and a step of gradient descent."""
    found = residuals(parameters)
    losses = torch.stack([found[task].square().mean(-1) for task in TASKS], -1)
    needs: dict[str, Any] = {"residuals": found} if isinstance(balancer, cp.NTK) else {}
    for parameter in parameters:
        parameter.grad = None
    balancer.backward(losses, shared=parameters, **needs)
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=rate)


def count_passes(parameters: list[Tensor]) -> list[int]:
    """Return a list that grows by one entry in every backward pass."""
    passes: list[int] = []
    parameters[0].register_hook(lambda grad: passes.append(1))
    return passes


@pytest.mark.parametrize("name", METHODS)
def test_replicas_equal_single_networks(name: str) -> None:
    stack = networks()
    alone = [[p[r].detach().clone().requires_grad_() for p in stack] for r in range(REPLICAS)]
    together = METHODS[name](TASKS, batch_shape=REPLICAS, every=2).double()
    options: list[dict[str, int]] = [{"seed": r} if name == "ntk" else {} for r in range(REPLICAS)]
    single = [METHODS[name](TASKS, every=2, **given).double() for given in options]
    passes, counts = count_passes(stack), []
    for _ in range(3):
        passes.clear()
        step(together, stack)
        counts.append(len(passes))
        for r in range(REPLICAS):
            step(single[r], alone[r])
            assert together.weights is not None
            torch.testing.assert_close(together.weights[r], single[r].weights)
            for parameter, own in zip(stack, alone[r], strict=True):
                torch.testing.assert_close(parameter[r], own)
    assert counts == [3, 1, 3]


@pytest.mark.parametrize("name", METHODS)
def test_held_schedule_measures_in_every_step_or_in_none(name: str) -> None:
    parameters, balancer = networks(), METHODS[name](TASKS, batch_shape=REPLICAS, every=5).double()
    passes = count_passes(parameters)
    with balancer.schedule.hold(True):
        for _ in range(2):
            step(balancer, parameters)
    assert len(passes) == 6
    with balancer.schedule.hold(False):
        step(balancer, parameters)
    assert len(passes) == 7
    assert balancer.schedule.steps == 0
    assert [balancer.schedule.is_due() for _ in range(6)] == [True, False, False, False, False, True]


def test_ntk_draws_the_same_signs_under_a_held_schedule_and_after_a_checkpoint() -> None:
    parameters = networks()
    counted, held = (cp.NTK(TASKS, batch_shape=REPLICAS, every=2).double() for _ in range(2))
    draws = []
    for count in range(5):
        step(counted, parameters, rate=0.0)
        if count % 2 == 0:
            with held.schedule.hold(True):
                step(held, parameters, rate=0.0)
            torch.testing.assert_close(held.weights, counted.weights)
            draws.append(held.task_weights.clone())
    assert not torch.equal(draws[0], draws[1])
    resumed = cp.NTK(TASKS, batch_shape=REPLICAS, every=2).double()
    resumed.load_state_dict(copy.deepcopy(counted.state_dict()))
    for balancer in (held, resumed):
        with balancer.schedule.hold(True):
            step(balancer, parameters, rate=0.0)
    torch.testing.assert_close(held.weights, resumed.weights)


def test_errors_name_the_dimensions_of_the_replicas() -> None:
    parameters = networks()
    found = residuals(parameters)
    losses = torch.stack([found[task].square().mean(-1) for task in TASKS], -1)
    with pytest.raises(ValueError, match=r"shape \(8, 1\).*expected the leading dimensions \(3,\) of the replicas"):
        cp.LRA(TASKS, batch_shape=3).backward(losses, shared=[torch.ones(8, 1, requires_grad=True)])
    with pytest.raises(ValueError, match=r"residuals of 'residual' have shape \(6,\), expected the leading dimensions"):
        cp.NTK(TASKS, batch_shape=3).backward(losses, shared=parameters, residuals={"residual": found["residual"][0]})
    with pytest.raises(ValueError, match=r"a parameter has shape \(8, 1\), expected the leading dimensions \(3,\)"):
        cp.NTK(TASKS, batch_shape=3).backward(losses, shared=[torch.ones(8, 1, requires_grad=True)], residuals=found)
    with pytest.raises(ValueError, match=r"seed has shape \(2,\), expected a single seed or shape \(3,\)"):
        cp.NTK(TASKS, batch_shape=3, seed=[1, 2])


@needs_cuda
@pytest.mark.parametrize("name", WITH_GRADNORM)
def test_steps_do_not_synchronise(name: str) -> None:
    parameters, balancer = networks("cuda"), WITH_GRADNORM[name](TASKS, batch_shape=REPLICAS, every=2).double().cuda()
    step(balancer, parameters)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            step(balancer, parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Warm up and capture one step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@needs_cuda
@pytest.mark.parametrize("name", WITH_GRADNORM)
def test_captured_graphs_replay_like_eager_steps(name: str) -> None:
    """One graph measures the gradients and one does not; the schedule selects the graph of each step."""
    eager, balancer = (WITH_GRADNORM[name](TASKS, batch_shape=REPLICAS, every=3).double().cuda() for _ in range(2))
    stack, parameters = networks("cuda"), networks("cuda")
    for _ in range(8):
        step(eager, stack)
    start = [p.detach().clone() for p in parameters]
    schedule = getattr(balancer, "schedule", None)
    with schedule.hold(True) if schedule else nullcontext():
        renew = capture(lambda: step(balancer, parameters))
    with schedule.hold(False) if schedule else nullcontext():
        plain = capture(lambda: step(balancer, parameters))
    balancer.reset()
    with torch.no_grad():
        for parameter, value in zip(parameters, start, strict=True):
            parameter.copy_(value)
    for _ in range(8):
        (renew if schedule is None or schedule.is_due() else plain).replay()
    for parameter, expected in zip(parameters, stack, strict=True):
        torch.testing.assert_close(parameter, expected)
