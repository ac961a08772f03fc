"""Options of every gradient-space method: importance and fixed losses."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import ALL, TASKS, Net, assert_same_gradients, batch, flat, jacobian
from torch import Tensor

import counterpoise as cp

IMPORTANCE = {"a": 3.0, "c": 0.5}
FACTORS = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
FIXED = {"l2": 1e-2, "aux": 0.5}
WITH_PREFERENCE = [name for name in ALL if cp.describe(name).build.uses_preference]  # type: ignore[attr-defined]
LINEAR = ["graddrop", "moco", "db-mtl"]  # importance multiplies masked or averaged gradients
WITHOUT_WEIGHTS = [*LINEAR, "trimmed-mean", "m-config"]  # the direction is not a weighted sum of the gradients


def step(balancer: cp.Balancer, net: Net, seed: int = 0, **options: Any) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Run one backward pass; return the objective and the gradients."""
    losses, z = net.losses(*batch(seed))
    net.zero_grad()
    place = {"features": z} if options.pop("at_features", False) else {"shared": list(net.trunk.parameters())}
    value = balancer.backward(losses, **place, **options)
    return value, net.grads()


def trunk(grads: dict[str, Tensor | None]) -> Tensor:
    return torch.cat([grad.flatten() for name, grad in grads.items() if "trunk" in name and grad is not None])


@pytest.mark.parametrize("heads", ["own", "aggregated"])
@pytest.mark.parametrize("name", [name for name in ALL if name not in (*WITH_PREFERENCE, *WITHOUT_WEIGHTS)])
def test_importance_multiplies_the_weights(name: str, heads: str) -> None:
    net, plain = Net(), cp.make(name, TASKS, heads=heads).double()
    weighted = cp.make(name, TASKS, heads=heads, importance=IMPORTANCE).double()
    for seed in range(3):
        _, grads = step(plain, net, seed)
        _, found = step(weighted, net, seed)
        assert plain.weights is not None
        assert weighted.weights is not None
        torch.testing.assert_close(weighted.weights, plain.weights * FACTORS)
        rows = jacobian(net, net.losses(*batch(seed))[0])
        expected = sum(w * row for w, row in zip(weighted.weights, rows.values(), strict=True))
        torch.testing.assert_close(trunk(found), expected, rtol=1e-8, atol=1e-12)
        for key, grad in grads.items():
            if "heads" in key:
                factor = FACTORS[TASKS.index(key.split(".")[1])] if heads == "aggregated" else 1.0
                torch.testing.assert_close(found[key], grad * factor)  # type: ignore[operator]
    for key, value in plain.state_dict().items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, weighted.state_dict()[key], rtol=1e-12, atol=1e-15)


def test_importance_of_gradnorm_proxy_between_updates() -> None:
    net, plain = Net(), cp.GradNormProxy(TASKS, every=3).double()
    weighted = cp.GradNormProxy(TASKS, every=3, importance=IMPORTANCE).double()
    compared = []
    for seed in range(7):
        step(plain, net, seed)
        _, found = step(weighted, net, seed)
        torch.testing.assert_close(weighted.weights, plain.weights * FACTORS)  # type: ignore[operator]
        rows = jacobian(net, net.losses(*batch(seed))[0])
        expected = sum(w * row for w, row in zip(weighted.weights, rows.values(), strict=True))  # type: ignore[arg-type]
        torch.testing.assert_close(trunk(found), expected)
        compared.append(plain._is_update_step())
    assert 0 < sum(compared) < 7


@pytest.mark.parametrize("name", LINEAR)
def test_direction_is_linear_in_the_importance(name: str) -> None:
    """Methods without weights combine running means or masked gradients, of which each gets its factor."""
    directions = []
    for importance in (torch.eye(3)[0], torch.eye(3)[1], torch.eye(3)[2], FACTORS, torch.ones(3)):
        net, balancer = Net(), cp.make(name, TASKS, importance=importance).double()
        for seed in range(3):
            step(balancer, net, seed)
        directions.append(flat(net))
        assert balancer.weights is None
    a, b, c, weighted, plain = directions
    torch.testing.assert_close(3 * a + b + 0.5 * c, weighted, rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(a + b + c, plain, rtol=1e-6, atol=1e-10)
    assert all(bool(direction.any()) for direction in directions)


def test_importance_of_auto_lambda_multiplies_the_losses() -> None:
    found = []
    for importance in (None, FACTORS):
        net = Net()
        balancer = cp.AutoLambda(TASKS, importance=importance).double()
        again = lambda net=net: net.losses(*batch(1))[0]  # noqa: E731
        net.zero_grad()
        balancer.backward(net.losses(*batch())[0], shared=net.parameters(), validation=again, training=again)
        found.append((balancer.weights, net.grads()))
    torch.testing.assert_close(found[1][0], found[0][0] * FACTORS)  # type: ignore[operator]
    rows = jacobian(net, net.losses(*batch())[0])
    expected = sum(w * row for w, row in zip(found[1][0], rows.values(), strict=True))  # type: ignore[arg-type]
    torch.testing.assert_close(trunk(found[1][1]), expected)
    for task, factor in zip(TASKS, FACTORS, strict=True):
        key = f"heads.{task}.weight"
        torch.testing.assert_close(found[1][1][key], found[0][1][key] * factor)


def gram_and_weights(balancer: cp.Aggregation) -> tuple[Tensor, Tensor]:
    net = Net()
    rows = torch.stack(list(jacobian(net, net.losses(*batch())[0]).values()))
    _, grads = step(balancer, net)
    assert balancer.weights is not None
    torch.testing.assert_close(trunk(grads), balancer.weights @ rows, rtol=1e-8, atol=1e-12)
    return rows @ rows.T, balancer.weights


def test_preference_of_nash_mtl_and_fairgrad() -> None:
    """Nash-MTL: α_i (Gα)_i = p_i. FairGrad: (Gw)_i^a w_i = p_i, up to a common factor."""
    gram, weights = gram_and_weights(cp.NashMTL(TASKS, importance=IMPORTANCE, max_norm=None).double())
    gains = weights * (gram @ weights) / FACTORS
    torch.testing.assert_close(gains, gains.mean().expand(3), rtol=1e-6, atol=0)
    for alpha in (0.5, 2.0):
        gram, weights = gram_and_weights(cp.FairGrad(TASKS, importance=IMPORTANCE, alpha=alpha).double())
        gains = weights * (gram @ weights) ** alpha / FACTORS
        torch.testing.assert_close(gains, gains.mean().expand(3), rtol=1e-6, atol=0)


def test_preference_of_upgrad_and_cagrad() -> None:
    gram, weights = gram_and_weights(cp.UPGrad(TASKS, importance=IMPORTANCE).double())
    torch.testing.assert_close(weights, cp.functional.upgrad_weights(gram, preference=FACTORS), rtol=1e-6, atol=1e-9)
    assert bool((gram @ weights >= -1e-9 * gram.diagonal().max()).all())  # no task is opposed
    gram, weights = gram_and_weights(cp.CAGrad(TASKS, importance=IMPORTANCE, alpha=0.0, rescale=False).double())
    torch.testing.assert_close(weights, FACTORS / FACTORS.sum(), rtol=1e-6, atol=1e-9)  # the preferred average
    gram, weights = gram_and_weights(cp.CAGrad(TASKS, importance=IMPORTANCE, alpha=0.4, rescale=False).double())
    average = FACTORS / FACTORS.sum()
    distance = ((weights - average) @ gram @ (weights - average)).sqrt()
    torch.testing.assert_close(distance, 0.4 * (average @ gram @ average).sqrt(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", [name for name in WITH_PREFERENCE if name not in WITHOUT_WEIGHTS])
def test_preference_depends_on_ratios_of_present_tasks_and_may_be_zero(name: str) -> None:
    net = Net()
    results = []
    for importance in ([3.0, 1.0, 0.5], [6.0, 2.0, 1.0]):
        balancer = cp.make(name, TASKS, importance=importance).double()
        step(balancer, net)
        results.append(balancer.weights / balancer.weights.sum())  # type: ignore[union-attr, operator, arg-type]
        losses, _ = net.losses(*batch())
        balancer.backward({"a": losses["a"], "c": losses["c"]}, shared=list(net.trunk.parameters()))
        assert balancer.weights is not None
        assert balancer.weights[1] == 0
        assert bool((balancer.weights[[0, 2]] > 0).all())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-8)
    balancer = cp.make(name, TASKS, importance={"b": 0.0}).double()
    _, grads = step(balancer, net)
    assert bool(torch.isfinite(trunk(grads)).all())
    assert bool(trunk(grads).any())


def test_preference_of_m_config_is_that_of_config() -> None:
    """At the first step the corrected momenta are the gradients."""
    trunks = []
    for build in (cp.ConFIG, cp.MConFIG):
        _, grads = step(build(TASKS, importance=IMPORTANCE).double(), Net())
        trunks.append(trunk(grads))
    torch.testing.assert_close(trunks[0], trunks[1], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_importance_of_one_is_bit_identical(name: str) -> None:
    net, plain, same = Net(), cp.make(name, TASKS), cp.make(name, TASKS, importance=dict.fromkeys(TASKS, 1.0))
    for seed in range(2):
        (value, grads), (other, found) = step(plain, net, seed), step(same, net, seed)
        assert torch.equal(value, other)
        assert all(torch.equal(grads[key], found[key]) for key in grads)  # type: ignore[arg-type]


def with_fixed(net: Net, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return the losses of the tasks, two fixed losses on trunk and heads, and the features."""
    losses, z = net.losses(*batch(seed))
    l2 = sum((p.square().sum() for p in net.parameters()), torch.zeros((), dtype=torch.float64))
    return losses, {"l2": l2, "aux": (net.heads["b"](z) * z).sin().mean()}, z


def expected_with_fixed(balancer: cp.Balancer, net: Net, at_features: bool) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return objective and gradients of the method without the fixed losses, plus the fixed losses."""
    losses, fixed, z = with_fixed(net)
    net.zero_grad()
    extra = sum(factor * fixed[key] for key, factor in FIXED.items())
    extra.backward(retain_graph=True)  # type: ignore[union-attr]
    place: Any = {"features": z} if at_features else {"shared": list(net.trunk.parameters())}
    value = balancer.backward(losses, **place)
    return value + extra.detach(), net.grads()  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["shared", "features", "both", "loss"])
@pytest.mark.parametrize("name", ALL)
def test_fixed_losses_are_added_to_the_direction(name: str, place: str) -> None:
    net = Net()
    options: Any = {"heads": "aggregated"} if place == "both" else {}
    fixed_in = [*TASKS, *FIXED] if place == "shared" else TASKS
    value, grads = expected_with_fixed(cp.make(name, TASKS, **options).double(), net, place == "features")
    balancer = cp.make(name, fixed_in, fixed=FIXED, **options).double()
    losses, fixed, z = with_fixed(net)
    if place == "both":
        fixed["aux"] = (net.heads["b"](z) * z).sin().mean()
    net.zero_grad()
    arguments: Any = {"features": z} if place in ("features", "both") else {}
    arguments |= {"shared": list(net.trunk.parameters())} if place != "features" else {}
    if place == "loss":
        loss = balancer.loss({**losses, **fixed}, **arguments)
        found = loss.detach()
        loss.backward()
    else:
        found = balancer.backward({**fixed, **losses}, **arguments)
    torch.testing.assert_close(found, value)
    assert_same_gradients(net.grads(), grads)


def test_fixed_losses_of_auto_lambda() -> None:
    net = Net()
    balancer, plain = cp.AutoLambda(TASKS, fixed=FIXED).double(), cp.AutoLambda(TASKS).double()
    again = lambda: net.losses(*batch(1))[0]  # noqa: E731
    losses, fixed, _ = with_fixed(net)
    net.zero_grad()
    sum(factor * fixed[key] for key, factor in FIXED.items()).backward(retain_graph=True)  # type: ignore[union-attr]
    value = plain.backward(losses, shared=net.parameters(), validation=again, training=again)
    expected = net.grads()
    net.zero_grad()
    losses, fixed, _ = with_fixed(net)
    found = balancer.backward({**losses, **fixed}, shared=net.parameters(), validation=again, training=again)
    torch.testing.assert_close(found, value + sum(factor * fixed[key].detach() for key, factor in FIXED.items()))
    assert_same_gradients(net.grads(), expected)


def test_fixed_losses_in_a_sequence_a_tensor_and_absent() -> None:
    w = torch.tensor([1.0, -2.0], requires_grad=True)
    for absent in (None, w.sum() * torch.nan):
        w.grad = None
        balancer = cp.PCGrad(["a", "l2", "b"], fixed={"l2": 0.5})
        value = balancer.backward([w.sum(), absent, w[0]], shared=[w])
        torch.testing.assert_close(w.grad, torch.tensor([2.0, 1.0]))
        torch.testing.assert_close(value, torch.tensor(0.0))
    w.grad = None
    balancer.backward(torch.stack([w.sum(), w.square().sum(), w[0]]), shared=[w])
    torch.testing.assert_close(w.grad, torch.tensor([3.0, -1.0]))
    w.grad = None
    value = balancer.backward([None, w.square().sum(), None], shared=[w])
    torch.testing.assert_close(w.grad, w.detach())
    torch.testing.assert_close(value, torch.tensor(2.5))
    w.grad = None
    losses = torch.stack([(w[0] - 1).sqrt() * torch.nan, w.square().sum(), w[0]])
    balancer.backward(losses, shared=[w])
    torch.testing.assert_close(w.grad, torch.tensor([2.0, -2.0]))


@pytest.mark.parametrize("name", ["pcgrad", "upgrad", "gradnorm-proxy"])
def test_fixed_losses_of_replicas_with_a_scaler_and_a_retained_graph(name: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    options: Any = {"batch_shape": 2, "importance": [2.0, 1.0], "every": 2}
    options = {key: value for key, value in options.items() if key != "every" or name == "gradnorm-proxy"}
    w = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64, requires_grad=True)
    plain, balancer = cp.make(name, 2, **options), cp.make(name, 2, fixed={"l2": 0.5}, **options)
    for _ in range(2):
        tasks = torch.stack([w.sum(1), w[:, 0] - w[:, 1].square()], 1)
        w.grad = None
        value = plain.backward(tasks, shared=[w])
        expected = 8 * (w.grad + w.detach())  # type: ignore[operator]
        w.grad = None
        losses = torch.stack([w.sum(1), w[:, 0] - w[:, 1].square(), w.square().sum(1)], 1)
        found = balancer.backward(losses, shared=[w], scaler=scaler, retain_graph=True)
        torch.testing.assert_close(found, value + 0.5 * w.detach().square().sum(1))
        torch.testing.assert_close(w.grad, expected)
        losses.sum().backward()


def test_fixed_losses_belong_to_the_gradient_space_balancer() -> None:
    with pytest.raises(ValueError, match="weighting has fixed losses: pass fixed= to PCGrad instead"):
        cp.PCGrad(2, weighting=cp.UWO(2, fixed={"l2": 1.0}))
    for method in (cp.IMTL, cp.DBMTL):
        assert method(["a", "l2", "b"], fixed={"l2": 1.0}).weighting.tasks == ("a", "b")  # type: ignore[union-attr]
    assert cp.PCGrad(["seg", "depth"], weighting=cp.UWO(2)).weighting.tasks == ("seg", "depth")  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["cagrad", "graddrop", "cr-mogm"])
def test_step_end_of_the_weighting_leaves_out_fixed_losses(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    losses = {"a": w[0].square(), "b": 3 * w.square().sum(), "l2": w.square().sum()}
    balancer = cp.make(name, ["a", "b"], weighting=cp.FAMO(["a", "b"]), fixed={"l2": 0.5})
    balancer.backward(losses, shared=[w])
    assert isinstance(balancer.weighting, cp.FAMO)
    before = balancer.weighting.logits.clone()
    balancer.step_end({task: loss.detach() / (4 if task == "a" else 2) for task, loss in losses.items()})
    assert not torch.equal(balancer.weighting.logits, before)
    with pytest.raises(ValueError, match="unknown task 'other'"):
        balancer.step_end({"a": torch.tensor(1.0), "b": torch.tensor(1.0), "other": torch.tensor(1.0)})


@pytest.mark.parametrize(
    "balancer",
    [
        lambda: cp.CAGrad(2, weighting=cp.UWO(2, strict=True)),
        lambda: cp.CRMOGM(2, method=cp.CAGrad(2, strict=True)),
        lambda: cp.CAGrad(2, weighting=cp.UWO(2), strict=True),
    ],
)
def test_a_method_is_strict_if_one_of_its_parts_is(balancer: Any) -> None:
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="is not finite"):
        balancer().backward([w[0] * torch.nan, w[1]], shared=[w])


def test_the_trimmed_mean_does_not_hide_an_overflow_from_a_scaler() -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses = [w[0], 2 * w[0], 3 * w[0], (w * torch.tensor([1e38, 0.0, 0.0])).sum()]
    cp.TrimmedMean(4).backward(losses, shared=[w], scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    torch.testing.assert_close(w, torch.ones(3), rtol=0, atol=0)
