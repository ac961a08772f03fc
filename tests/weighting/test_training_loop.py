"""Loss-space methods in a training loop: gradient scaling, accumulation, autocast, replicas, parameter groups."""

from typing import Any

import pytest
import torch
from helpers.toy import extra_arguments, problem
from helpers.toy_run import ToyRun
from torch import nn

import counterpoise as cp


@pytest.mark.parametrize("through", ["call", "backward"])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_grad_scaler_scales_after_weighting(name: str, through: str) -> None:
    plain, scaled = ToyRun(name), ToyRun(name)
    for run, scaler in ((plain, None), (scaled, torch.amp.GradScaler("cpu", init_scale=1024.0))):
        losses = run.losses()
        extra = extra_arguments(run.method, losses)
        if scaler is None:
            run.balancer(losses, **extra).backward()
            continue
        if through == "call":
            scaler.scale(run.balancer(losses, **extra)).backward()
        else:
            run.balancer.backward(losses, scaler=scaler, **extra)
        scaler.unscale_(run.optimizer)
    torch.testing.assert_close(scaled.balancer.weights, plain.balancer.weights)
    pairs = zip(
        [*plain.model.parameters(), *plain.balancer.parameters()],
        [*scaled.model.parameters(), *scaled.balancer.parameters()],
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad)


def test_accumulation_adds_gradients_and_calibrates_once() -> None:
    run = ToyRun("bpgs")
    balancer = run.balancer
    assert isinstance(balancer, cp.BPGS)
    parts = [run.losses(), run.losses() * torch.tensor([3.0, 0.1])]
    expected_network = [torch.zeros_like(p) for p in run.model.parameters()]
    expected_theta = torch.zeros(2)
    for losses in parts:
        (balancer(losses) / 2).backward(retain_graph=True)
        assert balancer.weights is not None
        grads = torch.autograd.grad((balancer.weights * losses).sum() / 2, list(run.model.parameters()))
        expected_network = [e + g for e, g in zip(expected_network, grads, strict=True)]
        step = cp.functional.bpgs(balancer.theta, losses)
        assert step.gradient is not None
        expected_theta = expected_theta + step.gradient / 2
    start = cp.BPGS(2)
    start(parts[0])
    assert torch.equal(start.theta, balancer.theta)
    for parameter, expected in zip(run.model.parameters(), expected_network, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
    torch.testing.assert_close(balancer.theta.grad, expected_theta)


def test_autocast_does_not_change_the_objective() -> None:
    model, x, y = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        losses = [nn.functional.mse_loss(out[:, i].float(), y[:, i]) for i in range(2)]
        inside = cp.BPGS(2)(losses)
    assert torch.equal(inside, cp.BPGS(2)(losses))


REPLICAS = 24


def seed_option(name: str, seed: int) -> dict[str, Any]:
    return {"seed": seed} if name in ("rlw", "relobralo") else {}


@pytest.mark.slow
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_stacked_replicas_equal_separate_balancers(name: str) -> None:
    """Replicas with losses (R, T) have the values, weights and gradients of R balancers, over several steps."""
    method, tasks, rounds = cp.describe(name), 3, 6
    stacked = cp.make(name, tasks, batch_shape=(REPLICAS,), **seed_option(name, 5)).double()
    single = [cp.make(name, tasks, **seed_option(name, 5 + i)).double() for i in range(REPLICAS)]
    generator = torch.Generator().manual_seed(1)
    for count in range(rounds):
        losses = 10 ** torch.randn(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        if count == 2:
            losses[::7, 1] = torch.nan
            losses[5] = torch.nan  # a batch without labels
        kpis = torch.rand(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        leaf = losses.clone().requires_grad_()
        value = stacked(leaf, **({"kpis": kpis} if method.needs == ("kpis",) else {}))
        value.sum().backward()
        assert value.shape == (REPLICAS,)
        assert stacked.weights is not None
        for i, balancer in enumerate(single):
            alone = balancer(
                losses[i].clone().requires_grad_(), **({"kpis": kpis[i]} if method.needs == ("kpis",) else {})
            )
            alone.backward()
            torch.testing.assert_close(value[i].detach(), alone.detach(), rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(stacked.weights[i], balancer.weights, rtol=1e-12, atol=1e-300)
            for mine, other in zip(stacked.parameters(), balancer.parameters(), strict=True):
                assert mine.grad is not None
                assert other.grad is not None
                torch.testing.assert_close(mine.grad[i], other.grad, rtol=1e-11, atol=1e-9)
        after = losses * torch.rand(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        stacked.step_end(after)
        stacked.epoch_end()
        for i, balancer in enumerate(single):
            balancer.step_end(after[i])
            balancer.epoch_end()


def test_losses_of_replicas_by_name() -> None:
    balancer = cp.BPGS(["a", "b"], batch_shape=5)
    a, b = torch.rand(5) + 0.1, 100 * torch.rand(5) + 1
    torch.testing.assert_close(balancer({"a": a, "b": b}), cp.BPGS(2, batch_shape=(5,))(torch.stack((a, b), -1)))
    with pytest.raises(ValueError, match=r"task 'a' has shape \(\), expected shape \(5,\)"):
        balancer({"a": a[0], "b": b})


def test_param_groups_have_no_weight_decay() -> None:
    balancer = cp.BPGS(3)
    (group,) = balancer.param_groups(lr=0.1)
    assert group["weight_decay"] == 0
    assert group["lr"] == 0.1
    assert group["params"][0] is balancer.theta
    assert cp.Static(3).param_groups() == []
    optimizer = torch.optim.AdamW([{"params": nn.Linear(1, 1).parameters()}, *balancer.param_groups()])
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.01, 0.0]


def test_repr_lists_tasks_and_options() -> None:
    text = repr(cp.BPGS(["seg", "depth"], chart="stateless"))
    assert text == "BPGS(seg, depth, chart=stateless, calibrate=True, split=True, normalise=True)"


def test_weights_can_be_modified_by_the_user() -> None:
    balancer, leaf = cp.UWO(2), torch.tensor([1.0, 4.0], requires_grad=True)
    value = balancer(leaf)
    assert balancer.weights is not None
    balancer.weights.zero_()
    value.backward()
    torch.testing.assert_close(leaf.grad, torch.tensor([1.0, 0.25]))
