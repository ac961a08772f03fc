"""Task gradients in training loops: accumulation, precision, checkpointing, overflow, deferred losses."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import ALL, GRAM, PLACES, TASKS, Net, assert_same_gradients, batch, flat, jacobian
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import counterpoise as cp
from counterpoise.aggregation import StepContext


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_gradient_accumulation(name: str, at: str) -> None:
    """The gradients of two micro-batches add up, with the same states as in separate steps."""
    net, balancer, parts = Net(), cp.make(name, TASKS), []
    for seed in (0, 1):
        losses, z = net.losses(*batch(seed))
        where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        net.zero_grad()
        balancer.backward(losses, **where)
        parts.append(net.grads())
    net.zero_grad()
    again = cp.make(name, TASKS)
    for seed in (0, 1):
        losses, z = net.losses(*batch(seed))
        where = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        again.backward(losses, **where)
    assert_same_gradients(net.grads(), {k: parts[0][k] + parts[1][k] for k in parts[0]})  # type: ignore[operator]


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_grad_scaler_does_not_change_training(name: str, at: str) -> None:
    """With a scale of 2¹⁵, parameters and state are those of plain float64 training."""
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**15)):
        net = Net()
        balancer = cp.make(name, TASKS, weighting=cp.BPGS(TASKS))
        optimizer = torch.optim.SGD([{"params": net.parameters()}, *balancer.param_groups()], lr=0.1)
        for seed in (0, 1):
            losses, z = net.losses(*batch(seed))
            optimizer.zero_grad()
            where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
            balancer.backward(losses, scaler=scaler, **where)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        state = {k: v.detach().double() for k, v in balancer.state_dict().items() if isinstance(v, Tensor)}
        found.append(({n: p.detach().clone() for n, p in net.named_parameters()}, state))
    (params, state), (others, other_state) = found
    for key in params:
        torch.testing.assert_close(params[key], others[key], rtol=1e-6, atol=1e-9, msg=key)
    for key in state:
        torch.testing.assert_close(state[key], other_state[key], rtol=1e-5, atol=1e-6, equal_nan=True, msg=key)


def test_overflow_reaches_the_scaler() -> None:
    """An infinite gradient stays infinite, so that the scaler skips the step, and does not enter the state."""
    net = Net(torch.float32)
    balancer = cp.GradVac(TASKS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    losses, _ = net.losses(*batch(dtype=torch.float32))
    losses["a"] = losses["a"] * 1e38
    balancer.backward(losses, shared=net.trunk.parameters(), scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 2.0**15
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    assert balancer.phi.isfinite().all()


@pytest.mark.parametrize("name", GRAM)
def test_gradient_whose_square_overflows_is_not_absent(name: str) -> None:
    """It is finite but cannot be compared: the step is NaN, not a step for the other tasks only."""
    w = torch.ones(3, requires_grad=True)
    balancer = cp.make(name, 3)
    balancer.backward([1e20 * w[0], w[1], w[2] - w[1]], shared=[w])
    assert w.grad is not None
    assert w.grad.isnan().all()
    w.grad = None
    balancer.backward([1e18 * w[0], w[1], None], shared=[w])
    assert w.grad is not None
    assert torch.isfinite(w.grad).all()


@pytest.mark.parametrize("name", GRAM)
def test_autocast(name: str) -> None:
    """Inside an autocast region, the Gram matrix is still computed in full precision."""
    net = Net(torch.float32)
    x, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = net.losses(x, y)
        rows = torch.stack(list(jacobian(net, losses).values())).double()
        inside = cp.make(name, TASKS, seed=3) if name in ("pcgrad", "gradvac") else cp.make(name, TASKS)
        inside.backward(losses, shared=net.trunk.parameters())
    outside = cp.make(name, TASKS, seed=3) if name in ("pcgrad", "gradvac") else cp.make(name, TASKS)
    assert isinstance(outside, cp.Aggregation)
    values = torch.stack([loss.detach().double() for loss in losses.values()])
    weights = outside.solve(
        rows @ rows.T, StepContext(values, torch.ones(3), torch.ones(3, dtype=torch.bool), None, True)
    )
    torch.testing.assert_close(inside.weights.double(), weights, rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]


def test_replicas_are_independent() -> None:
    """Stacked parameters (R, …) and losses (R, T) give one Gram matrix and one direction per replica."""
    replicas, generator = 3, torch.Generator().manual_seed(0)
    x = torch.randn(replicas, 10, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(replicas, 10, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(replicas, 5, 3, generator=generator, dtype=torch.float64)
    streams = [5, 6, 7]
    for name in ALL:
        draws = name in ("graddrop", "pcgrad", "gradvac")
        stacked = start.clone().requires_grad_()
        # At SDMGrad's default rate, its iterations amplify rounding errors.
        options: dict[str, Any] = {"lr": 0.1} if name == "sdmgrad" else {}
        balancer = cp.make(name, 3, batch_shape=replicas, **options, **({"seed": streams} if draws else {})).double()
        alone = [cp.make(name, 3, **options, **({"seed": seed} if draws else {})).double() for seed in streams]
        for step in range(3):
            stacked.grad = None
            present = torch.ones(replicas, 3, dtype=torch.bool)
            # One replica has no labels in step 1; alone, it would not draw.
            present[1], present[2, 0] = step != 1 or draws, step != 1
            losses = ((x @ stacked).tanh() - y).square().mean(1)
            balancer.backward(torch.where(present, losses, torch.nan), shared=[stacked])
            for r in range(replicas):
                single = start[r].clone().requires_grad_()
                losses = ((x[r] @ single).tanh() - y[r]).square().mean(0)
                alone[r].backward(torch.where(present[r], losses, torch.nan), shared=[single])
                grad = torch.zeros_like(single) if single.grad is None else single.grad
                assert stacked.grad is not None
                torch.testing.assert_close(stacked.grad[r], grad, rtol=1e-8, atol=1e-10, msg=f"{name} {step} {r}")


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant: bool) -> None:
    """Reentrant and non-reentrant checkpoints recompute the trunk in the pass of every task."""
    plain, saved = Net(), Net()
    x, y = batch()
    cp.CAGrad(TASKS).backward(plain.losses(x, y)[0], shared=plain.trunk.parameters())
    z = checkpoint(saved.trunk, x.requires_grad_(), use_reentrant=reentrant)
    losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(saved.heads.items())}
    cp.CAGrad(TASKS).backward(losses, shared=saved.trunk.parameters())
    assert_same_gradients(plain.grads(), saved.grads())


def test_failed_pass_restores_gradients() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    kept = {p: torch.ones_like(p) for p in net.trunk.parameters()}
    for p, grad in kept.items():
        p.grad = grad
    losses["c"].register_hook(lambda grad: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        cp.PCGrad(TASKS).backward(losses, shared=net.trunk.parameters())
    assert all(p.grad is grad for p, grad in kept.items())


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl", "gradnorm", "gradnorm-proxy", "sdmgrad", "gradvac"])
def test_overflow_skips_one_step_and_does_not_change_state(name: str) -> None:
    net = Net()
    balancer = cp.make(name, TASKS, **({"every": 1} if name == "gradnorm-proxy" else {}))
    balancer.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    before = {key: value.clone() for key, value in balancer.state_dict().items() if isinstance(value, Tensor)}
    net.zero_grad()
    losses, z = net.losses(*batch())
    z.register_hook(lambda grad: grad * torch.inf)
    balancer.backward(losses, shared=net.trunk.parameters(), scaler=torch.amp.GradScaler("cpu"))
    assert any(p.grad is not None and not torch.isfinite(p.grad).all() for p in net.trunk.parameters())
    after = balancer.state_dict()
    assert before.keys() <= after.keys()
    for key, value in before.items():
        if key != "counter":  # the next draw differs
            torch.testing.assert_close(after[key], value, equal_nan=True)
    net.zero_grad()
    balancer.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.trunk.parameters())


def test_moco_uses_the_weighted_losses() -> None:
    def first(factor: float, weights: list[float]) -> Tensor:
        w = torch.ones(2, dtype=torch.float64, requires_grad=True)
        balancer = cp.MoCo(2, weighting=cp.Static(2, weights=weights))
        balancer.backward([w[0], factor * w[1] + w[0]], shared=[w])
        assert w.grad is not None
        return w.grad

    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    cp.MoCo(2).backward([w[0], 1000 * (5 * w[1] + w[0])], shared=[w])  # the weight as a factor
    torch.testing.assert_close(first(5.0, [1.0, 1000.0]), w.grad)


def test_value_of_a_deferred_loss_ignores_absent_tasks() -> None:
    w = torch.ones(2, requires_grad=True)
    loss = cp.PCGrad(2).loss([w[0], w[1] * torch.inf], shared=w)
    assert float(loss.detach()) == 1.0


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"),
    reason="needs a torch that exposes retain_graph",
)
def test_deferred_loss_passes_retain_graph_on() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    loss = cp.PCGrad(TASKS).loss(losses, shared=net.trunk.parameters())
    (loss + 0.1 * losses["a"]).backward(retain_graph=True)
    once = flat(net)
    loss.backward()
    assert not torch.equal(flat(net), once)


@pytest.mark.parametrize("name", ALL)
def test_deferred_loss_times_zero_gives_zero_gradients(name: str) -> None:
    """As at the start of a warm-up; the next step works normally."""
    net, balancer = Net(), cp.make(name, TASKS)
    for factor in (0.0, 1.0):
        net.zero_grad()
        (factor * balancer.loss(net.losses(*batch())[0], shared=net.trunk.parameters())).backward()
        length = flat(net).norm()
        assert torch.isfinite(length)
        assert bool(length > 0) is bool(factor)


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_half_precision_network_gets_half_precision_gradients(name: str, at: str) -> None:
    trunk = nn.Linear(4, 8).to(torch.bfloat16)
    heads = [nn.Linear(8, 1).to(torch.bfloat16) for _ in range(2)]
    balancer = cp.make(name, 2)
    for _ in range(2):
        z = trunk(torch.randn(16, 4, dtype=torch.bfloat16)).relu()
        place: dict[str, Any] = {"features": z} if at == "features" else {"shared": trunk.parameters()}
        balancer.backward([(head(z) - 1).square().mean().float() for head in heads], **place)
    assert trunk.weight.grad is not None
    assert trunk.weight.grad.dtype == torch.bfloat16
    assert torch.isfinite(trunk.weight.grad).all()
    assert trunk.weight.grad.any()


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", ["nash-mtl", "fairgrad", "upgrad"])
def test_weights_beyond_the_range_of_float16(name: str, passes: str) -> None:
    """Weights that are the inverse of small gradients are infinite in float16, but the direction is not."""
    found: list[Tensor] = []
    for dtype in (torch.float16, torch.float32):
        torch.manual_seed(0)
        encoder, heads = nn.Linear(8, 16), nn.Linear(16, 3)
        z = encoder(torch.randn(32, 8)).to(dtype)
        losses = 1e-5 * torch.tensor([1.0, 2.0, 3.0]) * heads(z.float()).square().mean(0)
        balancer = cp.make(name, 3, passes=passes)
        balancer.backward(losses.unbind(), features=z, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**16))
        assert encoder.weight.grad is not None
        assert balancer.weights is not None
        found.append(encoder.weight.grad)
        assert (balancer.weights.max() > 65504) == (name != "upgrad")
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3 * float(found[1].abs().max()))
