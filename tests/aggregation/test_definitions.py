"""Gradient-space methods with state against their equations; combinations with a weighting; a known Pareto front."""

from typing import Any

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.trunk_and_heads import TASKS, Net, batch, flat, jacobian
from torch import Tensor, nn

import counterpoise as cp


def rows_of(net: Net, losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(jacobian(net, losses).values()))


def head(net: Net, task: str) -> nn.Linear:
    found = net.heads[task]
    assert isinstance(found, nn.Linear)
    return found


def steps(net: Net, count: int) -> Any:
    """Yield losses, task gradients and loss values for several batches."""
    for seed in range(count):
        losses, _ = net.losses(*batch(seed))
        net.zero_grad()
        yield losses, rows_of(net, losses), torch.stack([loss.detach() for loss in losses.values()])


def descend(net: Net) -> None:
    with torch.no_grad():
        for p in net.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.05)


def test_gradnorm_follows_its_equations() -> None:
    """Compare with autograd on the objective and torch's Adam."""
    net = Net()
    balancer = cp.GradNorm(TASKS, alpha=0.7).double()
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    adam, first = torch.optim.Adam([w], lr=0.025), None
    for losses, rows, values in steps(net, 5):
        balancer.backward(losses, shared=net.trunk.parameters())
        torch.testing.assert_close(balancer.weights, w.detach())
        torch.testing.assert_close(flat(net), w.detach() @ rows)
        first = values if first is None else first
        norms = rows.norm(dim=1)
        rate = values / first / (values / first).mean()
        target = ((w * norms).mean() * rate**0.7).detach()
        adam.zero_grad()
        (w * norms - target).abs().sum().backward()
        adam.step()
        with torch.no_grad():
            w *= 3 / w.sum()
        torch.testing.assert_close(balancer.task_weights, w.detach())
        descend(net)


def test_gradnorm_weights_multiply_the_gradients_of_heads() -> None:
    net = Net()
    balancer = cp.GradNorm(TASKS).double()
    balancer.task_weights.copy_(torch.tensor([0.5, 1.0, 1.5]))
    losses, _ = net.losses(*batch())
    own = torch.autograd.grad(losses["c"], head(net, "c").weight, retain_graph=True)[0]
    balancer.backward(losses, shared=net.trunk.parameters())
    torch.testing.assert_close(head(net, "c").weight.grad, 1.5 * own)


def test_gradnorm_proxy_follows_its_equations() -> None:
    net = Net()
    balancer = cp.GradNormProxy(TASKS, every=3).double()
    w = torch.ones(3, dtype=torch.float64)
    for count, (losses, rows, _) in enumerate(steps(net, 8), start=1):
        own = torch.autograd.grad(losses["b"], head(net, "b").bias, retain_graph=True)[0]
        if count % 3 == 0:
            inverse = 1 / rows.square().sum(1).clamp_min(1e-4)
            w = 3 * inverse / inverse.sum()
        balancer.backward(losses, shared=net.trunk.parameters())
        torch.testing.assert_close(balancer.weights, w)
        torch.testing.assert_close(flat(net), w @ rows)
        torch.testing.assert_close(head(net, "b").bias.grad, w[1] * own)
        descend(net)


def test_gradnorm_proxy_computes_task_gradients_only_in_update_steps() -> None:
    net, passes = Net(), 0

    def count_pass(*_: object) -> None:
        nonlocal passes
        passes += 1

    balancer = cp.GradNormProxy(TASKS, every=4, passes="loop")
    for expected in (1, 1, 1, 3, 1):
        losses, z = net.losses(*batch())
        assert z.grad_fn is not None
        z.grad_fn.register_hook(count_pass)
        passes = 0
        balancer.backward(losses, shared=net.trunk.parameters())
        assert passes == expected


def test_gradnorm_proxy_refuses_a_graph_that_would_never_update_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.aggregation.gradnorm_proxy.is_captured", lambda losses: True)
    net = Net()
    with pytest.raises(RuntimeError, match="never update its weights"):
        cp.GradNormProxy(TASKS).backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    cp.GradNormProxy(TASKS, every=1).backward(net.losses(*batch())[0], shared=net.trunk.parameters())


def test_excess_mtl_follows_its_equations() -> None:
    net = Net()
    balancer = cp.ExcessMTL(TASKS, lr=0.3).double()
    sums, first, logs = torch.zeros(1), None, torch.zeros(3, dtype=torch.float64)
    for losses, rows, _ in steps(net, 5):
        balancer.backward(losses, shared=net.trunk.parameters())
        sums = sums + rows.square()
        excess = (rows.square() / (sums + 1e-7).sqrt()).sum(1)
        if first is None:
            first = excess
        else:
            logs = logs + 0.3 * excess / first
        expected = 3 * torch.softmax(logs, 0)
        torch.testing.assert_close(balancer.weights, expected)
        torch.testing.assert_close(flat(net), expected @ rows)
        descend(net)


def test_excess_mtl_agrees_with_torchjd() -> None:
    """From the second step on, the weights grow by the same factors."""
    generator = torch.Generator().manual_seed(0)
    weighting = torchjd.ExcessMTLWeighting(robust_step_size=0.3)
    shared = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    balancer = cp.ExcessMTL(3, lr=0.3).double()
    theirs, ours = [], []
    for _ in range(6):
        j = torch.randn(3, 6, generator=generator, dtype=torch.float64)
        theirs.append(weighting(j).clone())
        balancer.backward(j @ shared, shared=[shared])
        assert balancer.weights is not None
        ours.append(balancer.weights / 3)
    for step in range(1, 6):
        a, b = (torch.log(w[step] / w[step - 1]) for w in (ours, theirs))
        torch.testing.assert_close(a - a.mean(), b - b.mean())


def test_excess_mtl_keeps_weights_of_absent_tasks_and_needs_a_nonzero_gradient() -> None:
    """A zero gradient sets no unit, and an absent task keeps its weight."""
    balancer = cp.ExcessMTL(3)
    w = torch.ones(3, requires_grad=True)
    balancer.backward([w[0] * 0.0, w[1], w[2] / 5], shared=[w])
    assert balancer.first.isnan().tolist() == [True, False, False]
    for _ in range(200):
        balancer.backward([w[0] * 1e3, w[1], None], shared=[w])
    torch.testing.assert_close(balancer.task_weights[2], torch.tensor(1.0))
    assert bool((balancer.task_weights[:2] > 1e-6).all())


@pytest.mark.parametrize("start", [torch.inf, 0.0])
def test_gradnorm_ignores_a_zero_or_infinite_first_loss(start: float) -> None:
    found = []
    for first in (start, None):
        w = torch.ones(2, requires_grad=True)
        balancer = cp.GradNorm(2)
        for factor in [first] + [3.0] * 50:
            balancer.backward([None if factor is None else w[0] * factor, w[1]], shared=[w])
        found.append(balancer.first)
    torch.testing.assert_close(*found)


def test_db_mtl_follows_its_equations() -> None:
    net = Net()
    balancer = cp.DBMTL(TASKS, beta=0.8, sigma=0.5).double()
    means = torch.zeros(1, dtype=torch.float64)
    for step, (losses, rows, values) in enumerate(steps(net, 5), start=1):
        own = torch.autograd.grad(losses["a"].log(), head(net, "a").weight, retain_graph=True)[0]
        balancer.backward(losses, shared=net.trunk.parameters())
        logs = rows / values.unsqueeze(1)
        beta = 0.8 / step**0.5
        means = beta * means + (1 - beta) * logs
        norms = means.norm(dim=1)
        torch.testing.assert_close(flat(net), (norms.max() / norms) @ means)
        torch.testing.assert_close(head(net, "a").weight.grad, own)
        assert balancer.weights is None
        descend(net)


def test_moco_follows_its_equations() -> None:
    net = Net()
    balancer = cp.MoCo(TASKS, rho=0.1).double()
    y, lam = torch.zeros(1, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    for step, (losses, rows, values) in enumerate(steps(net, 5), start=1):
        balancer.backward(losses, shared=net.trunk.parameters())
        y = y - 0.5 / step**0.5 * (y - rows / rows.norm(dim=1, keepdim=True) * values.unsqueeze(1))
        lam = torch.softmax(lam - 0.1 / step**0.5 * (y @ y.T + 0.1 * torch.eye(3)) @ lam, 0)
        torch.testing.assert_close(balancer.lam, lam)
        torch.testing.assert_close(flat(net), lam @ y)
        descend(net)


def test_gradient_memory_rejects_other_parameters() -> None:
    net = Net()
    balancer = cp.MoCo(TASKS)
    losses, _ = net.losses(*batch())
    balancer.backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    with pytest.raises(ValueError, match=r"the first difference: .* Call reset\(\)"):
        balancer.backward(losses, shared=net.trunk[0].parameters())


@pytest.mark.parametrize("leak", [0.0, 0.3])
def test_graddrop_has_the_expected_mean(leak: float) -> None:
    """E d = leak·Σg + (1 − leak)(P·Σg⁺ + (1 − P)·Σg⁻), and each draw keeps only one sign."""
    generator = torch.Generator().manual_seed(0)
    j = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    up, down = j.clamp_min(0).sum(0), j.clamp_max(0).sum(0)
    purity = (1 + j.sum(0) / j.abs().sum(0)) / 2
    wide = j.repeat(1, 20_000)  # many independent coordinates
    shared = nn.Parameter(torch.zeros(wide.shape[1], dtype=torch.float64))
    balancer = cp.GradDrop(3, leak=[leak] * 3, seed=1)
    balancer.backward(wide @ shared, shared=[shared])
    assert shared.grad is not None
    drawn = shared.grad.view(20_000, 4)
    low, high = leak * j.sum(0) + (1 - leak) * down, leak * j.sum(0) + (1 - leak) * up
    assert (torch.isclose(drawn, low) | torch.isclose(drawn, high)).all()
    expected = purity * high + (1 - purity) * low
    assert ((drawn.mean(0) - expected).abs() <= 5 * drawn.std(0) / 20_000**0.5 + 1e-12).all()
    draws = [shared.grad.clone()]
    for fresh in (False, True):
        if fresh:
            balancer.reset()
        shared.grad.zero_()
        balancer.backward(wide @ shared, shared=[shared])
        draws.append(shared.grad.clone())
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("normalise", ["l2", "loss", "loss+"])
def test_mgda_normalises_only_for_the_weights(normalise: str) -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    rows, values = rows_of(net, losses), torch.stack([loss.detach() for loss in losses.values()])
    divisor = torch.ones(3, dtype=torch.float64)
    divisor = divisor * (rows.norm(dim=1) if normalise in ("l2", "loss+") else 1)
    divisor = divisor * (values if normalise in ("loss", "loss+") else 1)
    scaled = rows / divisor.unsqueeze(1)
    balancer = cp.MGDA(TASKS, normalise=normalise)  # type: ignore[arg-type]
    balancer.backward(losses, shared=net.trunk.parameters())
    torch.testing.assert_close(balancer.weights, cp.functional.mgda_weights(scaled @ scaled.T))
    assert balancer.weights is not None
    torch.testing.assert_close(flat(net), balancer.weights @ rows)


def test_nash_mtl_respects_max_norm() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    cp.NashMTL(TASKS, max_norm=None).backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    assert flat(net).norm().item() == pytest.approx(3**0.5)
    free = flat(net)
    net.zero_grad()
    cp.NashMTL(TASKS).backward(losses, shared=net.trunk.parameters())
    torch.testing.assert_close(flat(net), free / 3**0.5)


WEIGHTINGS = [name for name in cp.methods("loss") if name not in ("dtp", "famo")]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weighting_is_applied_before_aggregation(weighting: str) -> None:
    """J ← diag(w) J, then the aggregation; θ and heads get the gradients of the weighting alone."""
    net, alone = Net(), Net()
    pair = cp.make("cagrad", TASKS, weighting=cp.make(weighting, TASKS).double())
    single = cp.make(weighting, TASKS).double()
    for seed in range(3):
        for part in (*net.parameters(), *alone.parameters(), *pair.parameters(), *single.parameters()):
            part.grad = None
        losses, _ = net.losses(*batch(seed))
        rows = rows_of(net, losses)
        value = pair.backward(losses, shared=net.trunk.parameters())
        expected = single.backward(alone.losses(*batch(seed))[0])
        torch.testing.assert_close(value, expected)
        assert single.weights is not None
        scaled = single.weights.unsqueeze(1) * rows
        c = cp.functional.cagrad_weights(scaled @ scaled.T)
        torch.testing.assert_close(pair.weights, c * single.weights)
        torch.testing.assert_close(flat(net), c @ scaled)
        for mine, other in zip(pair.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
        for mine, other in zip(net.heads.parameters(), alone.heads.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
        pair.epoch_end()
        single.epoch_end()


def test_inputs_of_the_weighting_are_passed_on() -> None:
    net = Net()
    pair = cp.PCGrad(TASKS, weighting=cp.DTP(TASKS))
    losses, _ = net.losses(*batch())
    with pytest.raises(ValueError, match="kpis="):
        pair.backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    pair.backward(losses, shared=net.trunk.parameters(), kpis=[0.1, 0.5, 0.9])
    famo = cp.FAMO(TASKS)
    pair = cp.PCGrad(TASKS, weighting=famo)
    pair.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    pair.step_end(
        {t: loss.detach() * s for (t, loss), s in zip(net.losses(*batch())[0].items(), (1, 0.5, 2), strict=True)}
    )
    assert famo.adam.step == 1
    assert len(list(cp.PCGrad(3, weighting=cp.BPGS(3)).parameters())) == 1


def test_frozen_parameters_get_no_gradient() -> None:
    net, pair = Net(), cp.CAGrad(TASKS, weighting=cp.Kendall(TASKS))
    pair.requires_grad_(False)
    pair.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    assert all(p.grad is None for p in pair.parameters())


def test_imtl_uses_imtl_l_by_default() -> None:
    assert isinstance(cp.IMTL(2).weighting, cp.IMTLL)


# Two parabolas with minima at (−1, 0) and (1, 0), one ten times as steep: the front is the segment between them.
PARETO = ["mgda", "cagrad", "imtl-g", "nash-mtl", "fairgrad", "upgrad", "pcgrad", "aligned-mtl", "sdmgrad", "moco"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PARETO)
def test_methods_converge_to_the_pareto_front(name: str) -> None:
    """Start from three points, as replicas of one balancer."""
    point = nn.Parameter(torch.tensor([(-1.5, 2.0), (0.3, -3.0), (3.0, 0.5)], dtype=torch.float64))
    ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    steep = torch.tensor([1.0, 10.0], dtype=torch.float64)
    balancer = cp.make(name, 2, batch_shape=3).double()
    for step in range(200):
        point.grad = None
        balancer.backward(steep * (point.unsqueeze(1) - ends).square().sum(-1), shared=[point])
        assert point.grad is not None
        with torch.no_grad():
            point.sub_(0.2 / (1 + 0.05 * step) * point.grad / point.grad.norm(dim=-1, keepdim=True).clamp_min(1.0))
    rows = 2 * steep.unsqueeze(1) * (point.detach().unsqueeze(1) - ends)
    w = cp.functional.mgda_weights(
        rows @ rows.mT
    )  # at a stationary point, a convex combination of the gradients is zero
    assert ((w.unsqueeze(1) @ rows).norm(dim=-1) < 2e-2 * rows.flatten(1).norm(dim=-1, keepdim=True)).all(), point
