"""Loss-space methods on CUDA: the fused kernel, no synchronisation, CUDA graphs. Needs only torch and pytest."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise import kernels
from counterpoise.functional import _replay, bpgs, bpgs_calibrate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(shape, generator=generator, dtype=torch.float64)
    losses = 10 ** torch.randn(shape, generator=generator, dtype=torch.float64)
    return theta.to(dtype).cuda(), losses.to(dtype).cuda()


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (14,), (64,), (120, 5), (4, 6, 3)])
def test_kernel_agrees_with_the_tensor_operations(shape: tuple[int, ...], dtype: torch.dtype, calibrate: bool) -> None:
    for seed in range(6):
        theta, losses = draw(shape, dtype, seed)
        if seed % 2:
            losses[..., seed % shape[-1]] = [torch.nan, torch.inf, -torch.inf, 0.0][seed % 4]
            theta[..., -1] = 100
        theta_after, flags = theta.clone(), torch.zeros(shape, dtype=torch.bool, device="cuda")
        kernel = kernels.select_bpgs_kernel(losses)
        assert kernel is not None
        step, inputs = kernel(
            losses, theta_after, flags, calibrate=calibrate, theta_gain=100.0, margin=0.1, eps_log=1e-8, eps_std=1e-4
        )
        if calibrate:
            theta, expected_flags = bpgs_calibrate(theta, losses, torch.zeros_like(flags))
            assert torch.equal(flags, expected_flags)
        reference = bpgs(theta, losses)
        exact = dtype == torch.float64
        close: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14} if exact else {"rtol": 1e-6, "atol": 1e-9}
        torch.testing.assert_close(theta_after, theta)
        torch.testing.assert_close(torch.as_tensor(inputs[0]), theta.to(step.weights.dtype))
        torch.testing.assert_close(torch.as_tensor(inputs[1]), losses.to(step.weights.dtype), equal_nan=True)
        torch.testing.assert_close(step.weights, reference.weights, **close)
        torch.testing.assert_close(step.objective, reference.objective, **close)
        torch.testing.assert_close(step.gradient, reference.gradient, rtol=close["rtol"], atol=1e-10 if exact else 1e-3)


def test_step_without_graphs_is_one_kernel_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "ENABLED", False)
    balancer, losses = cp.BPGS(3).cuda(), torch.rand(3, device="cuda") + 0.1
    balancer(losses)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        balancer(losses)
    launched = [event for event in profile.events() if event.device_type.name == "CUDA"]
    assert [event.name for event in launched] == ["_bpgs_kernel"]


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_step_does_not_synchronise(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3).cuda()
    balancer = cp.make(name, ["a", "b", "c"]).cuda()
    groups = [{"params": model.parameters()}, *balancer.param_groups()]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, capturable=True)
    x = torch.randn(16, 8, device="cuda")
    kpis = torch.tensor([0.9, 0.5, 0.2], device="cuda")
    extra = {"kpis": kpis} if name == "dtp" else {}

    def step() -> None:
        optimizer.zero_grad()
        losses = model(x).square().mean(0)
        balancer({"a": losses[0], "b": 100 * losses[1], "c": losses[2]}, **extra).backward()
        optimizer.step()
        with torch.no_grad():
            balancer.step_end(list(model(x).square().mean(0)))

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
        balancer.epoch_end()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert balancer.weights is not None
    assert balancer.weights.is_cuda


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_captured_step_replays_like_eager(name: str) -> None:
    def build() -> tuple[nn.Module, cp.Balancer, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(8, 3).cuda()
        balancer = cp.make(name, 3, **({"accumulation": 10**9} if name == "famo" else {})).cuda()
        if name == "dtp":
            balancer(torch.ones(3, device="cuda"), kpis=[0.9, 0.5, 0.2])
        groups = [{"params": model.parameters()}, *balancer.param_groups()]
        return model, balancer, torch.optim.AdamW(groups, lr=torch.tensor(1e-2), capturable=True)

    batches = torch.randn(6, 16, 8, device="cuda")
    scale = torch.tensor([1.0, 100.0, 0.1], device="cuda")

    def step(model: nn.Module, balancer: cp.Balancer, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        balancer(model(x).square().mean(0) * scale).backward()
        optimizer.step()

    eager = build()
    for x in batches:
        step(*eager, x)

    model, balancer, optimizer = build()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    static = batches[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, balancer, optimizer, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(model, balancer, optimizer, static)
    model.load_state_dict(start)  # in place, because the graph refers to these addresses
    balancer.reset()
    if isinstance(balancer, cp.DTP):
        balancer.kappa.copy_(torch.tensor([0.9, 0.5, 0.2]))
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    for x in batches:
        static.copy_(x)
        graph.replay()
    for a, b in zip(eager[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(eager[1].parameters(), balancer.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_training_with_grad_scaler_and_autocast() -> None:
    torch.manual_seed(0)
    model, balancer = nn.Linear(8, 2).cuda(), cp.BPGS(2).cuda()
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, *balancer.param_groups()])
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(32, 8, device="cuda")
    first = last = torch.zeros(2)
    for count in range(50):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            losses = (model(x) - 1).float().square().mean(0) * torch.tensor([1.0, 1000.0], device="cuda")
        scaler.scale(balancer(losses)).backward()
        scaler.step(optimizer)
        scaler.update()
        first, last = (losses.detach(), losses.detach()) if count == 0 else (first, losses.detach())
    assert torch.all(last < first)
    assert torch.isfinite(balancer.theta).all()


def test_losses_on_another_device_raise_an_error() -> None:
    with pytest.raises(ValueError, match="task 'a' is on cuda:0, expected cpu"):
        cp.BPGS(["a", "b"])({"a": torch.ones((), device="cuda"), "b": torch.ones((), device="cuda")})


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_compiled_step_agrees_with_eager(name: str) -> None:
    torch._dynamo.reset()
    fast, slow = cp.make(name, 3).cuda(), cp.make(name, 3).cuda()
    if name == "dtp":
        for balancer in (fast, slow):
            balancer(torch.ones(3, device="cuda"), kpis=[0.9, 0.5, 0.2])
    compiled = torch.compile(fast, fullgraph=True)
    for seed in range(3):
        losses = draw((3,), torch.float32, seed)[1]
        one, two = losses.clone().requires_grad_(), losses.clone().requires_grad_()
        compiled(one).backward()
        slow(two).backward()
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-6)
        for balancer in (fast, slow):
            balancer.step_end(0.9 * losses)
            balancer.epoch_end()


def test_cpu_and_cuda_agree() -> None:
    losses = draw((14,), torch.float32, 0)[1]
    on_gpu, on_cpu = cp.BPGS(14).cuda(), cp.BPGS(14)
    torch.testing.assert_close(on_gpu(losses).cpu(), on_cpu(losses.cpu()))
    torch.testing.assert_close(on_gpu.theta.cpu(), on_cpu.theta)
