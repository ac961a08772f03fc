"""Gradient-space methods on CUDA: agreement with the CPU, no synchronisation. Needs only torch and pytest."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers.grams import KINDS, grams
from helpers.trunk_and_heads import ALL
from torch import Tensor, nn

import counterpoise as cp
from counterpoise import functional as f
from counterpoise import gradients
from counterpoise.functional import _replay
from counterpoise.gradients import combination, gram

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SOLVERS: dict[str, Callable[[Tensor], f.Solution]] = {
    "mgda": f.mgda,
    "cagrad": f.cagrad,
    "nash": f.nash,
    "fairgrad": partial(f.fairgrad, alpha=2.0),
    "upgrad": f.upgrad,
    "imtl-g": f.imtl_g,
}
WITHOUT_SYNC = [name for name in ALL if name != "aligned-mtl"]


@pytest.fixture
def on_sync() -> Iterator[Callable[[str], None]]:
    """Return a function that sets the response to a synchronisation: "default" or "error"."""
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("tasks", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_agree_with_the_cpu(name: str, kind: str, tasks: int) -> None:
    gram = grams(kind, 20, tasks)
    on_cpu, on_gpu = SOLVERS[name](gram), SOLVERS[name](gram.cuda())
    assert on_gpu.weights.isfinite().all()
    both = (on_cpu.solved & on_gpu.solved.cpu()).unsqueeze(-1)
    assert (on_gpu.solved.cpu() | ~on_cpu.solved).float().mean() > 0.9  # the CPU also uses bisection
    a, b = torch.where(both, on_cpu.weights, 0.0), torch.where(both, on_gpu.weights.cpu(), 0.0)
    j = gram if kind == "absent" else torch.linalg.cholesky(gram + 1e-12 * torch.eye(tasks))
    j = torch.nan_to_num(j)
    direction, other = (a.unsqueeze(1) @ j).squeeze(1), (b.unsqueeze(1) @ j).squeeze(1)
    scale = (a.abs().unsqueeze(-1) * j.abs()).sum(1).amax(-1, keepdim=True)
    assert ((direction - other).abs() <= 1e-6 * scale + 1e-12).all()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(32, 1) for _ in range(3))

    def losses(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        z = self.trunk(x)
        return [(head(z)[:, 0] - y[:, i]).square().mean() for i, head in enumerate(self.heads)], z


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 6, generator=generator), 5 * torch.randn(64, 3, generator=generator)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", ALL)
def test_steps_agree_with_the_cpu(name: str, at: str) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        net, (x, y) = Net().double().to(device), (t.double().to(device) for t in batch())
        balancer = cp.make(name, 3, weighting=cp.BPGS(3)).double().to(device)
        optimizer = torch.optim.SGD([{"params": net.parameters()}, *balancer.param_groups()], lr=0.01)
        for _ in range(3):
            losses, z = net.losses(x, y)
            optimizer.zero_grad()
            where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
            balancer.backward(losses, **where)
            optimizer.step()
        ends.append([p.detach().cpu() for p in net.parameters()])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("passes", ["loop", "batched", "features"])
@pytest.mark.parametrize("name", WITHOUT_SYNC)
def test_step_does_not_synchronise(name: str, passes: str, on_sync: Callable[[str], None]) -> None:
    net, (x, y) = Net().cuda(), (t.cuda() for t in batch())
    options: dict[str, Any] = {} if passes == "features" else {"passes": passes}
    balancer = cp.make(name, 3, weighting=cp.BPGS(3), **options).cuda()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones((), device="cuda"))
    for count in range(4):
        losses, z = net.losses(x, y)
        net.zero_grad()
        where: dict[str, Any] = {"features": z} if passes == "features" else {"shared": net.trunk.parameters()}
        on_sync("error" if count else "default")
        balancer.backward(losses, scaler=scaler, **where)
        on_sync("default")
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_mixed_precision_trains_like_float32() -> None:
    """Train with fp16 autocast and a GradScaler."""
    finals = []
    for half in (False, True):
        net, (x, y) = Net().cuda(), (t.cuda() for t in batch())
        balancer = cp.PCGrad(3, weighting=cp.BPGS(3)).cuda()
        optimizer = torch.optim.Adam([{"params": net.parameters()}, *balancer.param_groups()], lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=half)
        for _ in range(60):
            with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                losses, _ = net.losses(x, y)
            optimizer.zero_grad()
            balancer.backward(losses, shared=net.trunk.parameters(), scaler=scaler if half else None)
            scaler.step(optimizer)
            scaler.update()
        finals.append(torch.stack(net.losses(x, y)[0]).detach())
    torch.testing.assert_close(finals[1], finals[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("at", ["loop", "features"])
@pytest.mark.parametrize("name", ["pcgrad", "upgrad", "nash-mtl", "mgda", "cagrad", "config", "imtl-g", "fairgrad"])
def test_replayed_steps_agree_with_eager_ones(name: str, at: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, replays = _replay.Recording.__call__, []

    def count_replays(recording: _replay.Recording, inputs: list[Tensor]) -> Tensor:
        replays.append(recording)
        return replay(recording, inputs)

    monkeypatch.setattr(_replay.Recording, "__call__", count_replays)
    found: list[list[Tensor | None]] = []
    for enabled in (False, True):
        monkeypatch.setattr(_replay, "ENABLED", enabled)
        net = Net().cuda()
        balancer = cp.make(name, 3, passes="loop", importance=[1.0, 2.0, 1.0]).cuda()
        scaler = torch.amp.GradScaler("cuda", init_scale=256.0) if half else None
        results: list[Tensor | None] = []
        for count in range(10):
            generator = torch.Generator().manual_seed(count)
            x, y = torch.randn(64, 6, generator=generator).cuda(), 5 * torch.randn(64, 3, generator=generator).cuda()
            with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                losses, z = net.losses(x, y)
            if count == 6:
                losses[1] = losses[1] * torch.nan  # an absent task
            net.zero_grad()
            where: dict[str, Any] = {"features": z} if at == "features" else {"shared": net.trunk.parameters()}
            results.append(balancer.backward(losses, scaler=scaler, **where))
            results += [balancer.weights, *(p.grad for p in net.trunk.parameters())]
        found.append(results)
    torch.testing.assert_close(found[1], found[0], rtol=2e-3, atol=1e-2 if half else 1e-5, equal_nan=True)
    assert len(replays) >= 10 - _replay.EAGER_CALLS


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_and_sums_of_long_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "GPU_ELEMENTS", 1 << 17)
    shapes = [(7,), (40, 30, 5, 5), (64,), (200, 301), (1,)]
    rows = [[torch.randn(shape, device="cuda").to(dtype) for shape in shapes] for _ in range(3)]
    for row in rows:
        row[1] = row[1].contiguous(memory_format=torch.channels_last)
    flat = torch.stack([torch.cat([grad.flatten() for grad in row]) for row in rows]).double()
    products = gram.gram_matrix([[*row] for row in rows], 0)
    torch.testing.assert_close(products, flat @ flat.mT, rtol=1e-5, atol=1e-2)
    partial: list[gradients.GradientList] = [[*row] for row in rows]
    partial[1][3] = None  # a task that does not depend on one of the tensors
    zeroed = [
        torch.zeros_like(grad) if i == 1 and k == 3 else grad
        for i, row in enumerate(rows)
        for k, grad in enumerate(row)
    ]
    kept = torch.cat([grad.flatten() for grad in zeroed]).view(3, -1).double()
    torch.testing.assert_close(gram.gram_matrix(partial, 0), kept @ kept.mT, rtol=1e-5, atol=1e-2)
    weights = torch.tensor([1e5, -1e5, 2.0], device="cuda") * (1e-4 if dtype is torch.float32 else 1e-3)
    combined = combination.combine([[*row] for row in rows], weights)
    assert all(grad is not None and grad.dtype is dtype for grad in combined)
    together = torch.cat([grad.flatten() for grad in combined if grad is not None]).double()
    torch.testing.assert_close(
        together, weights.double() @ flat, rtol=2e-3, atol=0.5 if dtype is torch.float16 else 1e-4
    )
