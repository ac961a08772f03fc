"""balancer.loss(…).backward() in gradient space: value, gradients, added terms, and what is refused."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import ALL, KINDS, TASKS, Net, assert_same_gradients, batch
from torch import Tensor

import counterpoise as cp


def place(net: Net, z: Tensor, kind: str) -> dict[str, Any]:
    shared = {"shared": list(net.trunk.parameters())} if kind != "features" else {}
    return shared | ({"features": z} if kind != "shared" else {})


@pytest.mark.parametrize(
    ("name", "weighting"), [*((name, "bpgs") for name in ALL), *((name, None) for name in KINDS), ("upgrad", "kendall")]
)
def test_loss_agrees_with_backward(name: str, weighting: str | None) -> None:
    results = []
    for deferred in (False, True):
        net = Net()
        options = {} if weighting is None else {"weighting": cp.make(weighting, TASKS)}
        balancer = cp.make(name, TASKS, importance={"a": 2.0}, fixed={"l2": 0.5}, **options).double()
        for seed in range(2):
            losses, _ = net.losses(*batch(seed))
            losses["l2"] = net.heads["a"].weight.square().sum()  # type: ignore[operator]
            net.zero_grad()
            balancer.zero_grad()
            if deferred:
                loss = balancer.loss(losses, shared=net.trunk.parameters())
                loss.backward()
                value = loss.detach()
            else:
                value = balancer.backward(losses, shared=net.trunk.parameters())
        own = {f"balancer.{key}": p.grad for key, p in balancer.named_parameters()}
        results.append((value, net.grads() | own, balancer.weights))
        assert type(value) is Tensor
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=0)
    assert_same_gradients(results[0][1], results[1][1])
    torch.testing.assert_close(results[0][2], results[1][2], rtol=0, atol=0)


def test_loss_of_replicas_is_a_scalar() -> None:
    w = torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)

    def losses() -> Tensor:
        return torch.stack([w.sum(1), w[:, 0] - w[:, 1].square()], 1)

    value = cp.UPGrad(2, batch_shape=2).backward(losses(), shared=[w])
    expected, w.grad = w.grad, None
    loss = cp.UPGrad(2, batch_shape=2).loss(losses(), shared=[w])
    torch.testing.assert_close(loss.detach(), value.sum())
    (loss / 4).backward()
    assert expected is not None
    torch.testing.assert_close(w.grad, expected / 4)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_other_ways_to_differentiate_are_refused() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)

    def loss() -> Tensor:
        return cp.PCGrad(2).loss([w.sum(), w[0] - w[1]], shared=[w])

    one = loss()
    for output in (one, 2 * one + w.sum(), [w.sum(), one], torch.stack([one, one]).sum()):
        with pytest.raises(RuntimeError, match=r"not the derivative of its loss: call loss.backward\(\)"):
            torch.autograd.grad(output, [w])
    for arguments in ({"inputs": [w]}, {"inputs": w}):
        with pytest.raises(RuntimeError, match=r"without inputs=, and read the gradients from .grad"):
            one.backward(**arguments)
    with pytest.raises(RuntimeError, match="without inputs="):
        one.backward(None, False, False, [w])
    for grad in (None, torch.ones(())):
        with pytest.raises(RuntimeError, match="without inputs="):
            torch.autograd.backward([one], None if grad is None else [grad], inputs=[w])
    with pytest.raises(RuntimeError, match=r"no second derivatives: call backward\(\) without create_graph"):
        one.backward(create_graph=True)
    assert w.grad is None
    loss().backward()
    expected, w.grad = w.grad, None
    torch.autograd.backward([loss()])
    assert expected is not None
    torch.testing.assert_close(w.grad, expected)


def test_results_that_need_no_gradient_are_plain_tensors() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = cp.PCGrad(2).loss([w.sum(), w[0]], shared=[w])
    assert loss.item() == 4.0
    assert f"{loss.detach():.1f}" == "4.0"
    assert type(loss.detach()) is type(loss.detach().cpu() * 2) is Tensor
    loss /= 2
    loss.backward()
    torch.testing.assert_close(w.grad, torch.tensor([1.0, 0.5]))


@pytest.mark.parametrize("term", ["encoder", "features", "loss", "head", "parameters", "other graph"])
@pytest.mark.parametrize(("kind", "order"), [("shared", "before"), ("features", "after"), ("both", "before")])
def test_other_terms_may_be_added(kind: str, order: str, term: str) -> None:
    net, other = Net(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def extra(losses: dict[str, Tensor], z: Tensor) -> Tensor:
        x = batch()[0]
        terms: dict[str, Callable[[], Tensor]] = {
            "encoder": lambda: net.trunk[:2](x).square().mean() + z.sin().mean(),
            "features": lambda: z.square().mean(),
            "loss": lambda: 0.3 * losses["b"],
            "head": lambda: net.heads["c"](z).square().mean(),
            "parameters": lambda: sum((p.square().sum() for p in net.parameters()), 0 * other),
            "other graph": lambda: other.exp(),
        }
        return terms[term]()

    losses, z = net.losses(*batch())
    extra(losses, z).backward(retain_graph=True)
    cp.UPGrad(TASKS).double().backward(losses, **place(net, z, kind))
    expected = net.grads() | {"other": other.grad}
    net.zero_grad()
    other.grad = None
    losses, z = net.losses(*batch())
    balancer = cp.UPGrad(TASKS).double()
    if order == "before":
        added = extra(losses, z)
        total = balancer.loss(losses, **place(net, z, kind)) + added
    else:
        total = balancer.loss(losses, **place(net, z, kind))
        total = extra(losses, z) + total
    total.backward()
    assert_same_gradients(net.grads() | {"other": other.grad}, expected)


class Saved:
    """A tensor that autograd saves for the backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


EXPOSES_RETAIN = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"),
    reason="needs a torch that exposes retain_graph",
)


@pytest.mark.parametrize("retain", [False, pytest.param(True, marks=EXPOSES_RETAIN)])
@pytest.mark.parametrize("kind", ["shared", "features"])
def test_graph_of_the_trunk_is_freed_unless_it_is_retained(kind: str, retain: bool) -> None:
    net, saved = Net(), []

    def pack(tensor: Tensor) -> Saved:
        kept = Saved(tensor)
        saved.append(weakref.ref(kept))
        return kept

    x, _ = batch()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        z = net.trunk(x)
    losses = {task: head(z).square().mean() for task, head in net.heads.items()}
    loss = cp.PCGrad(TASKS).double().loss(losses, **place(net, z, kind)) * 2
    # This term shares only a parameter with the graph.
    l2 = net.trunk[0].weight.square().sum()  # type: ignore[operator]
    (loss + l2).backward(retain_graph=retain)
    assert saved
    assert any(reference() is not None for reference in saved) == retain
    if retain:
        (loss + l2).backward()
        assert all(reference() is None for reference in saved)


def test_several_losses_in_one_backward_pass() -> None:
    net = Net()
    expected: dict[str, Tensor | None] = {}
    for together in (False, True):
        net.zero_grad()
        balancers = cp.PCGrad(TASKS, seed=1).double(), cp.UPGrad(TASKS).double()
        parts = []
        for seed, balancer in enumerate(balancers):
            losses, _ = net.losses(*batch(seed))
            part = balancer.loss(losses, shared=net.trunk.parameters()) / 2
            parts.append(part)
            if not together:
                part.backward()
        if together:
            torch.stack(parts).sum().backward()
            assert_same_gradients(net.grads(), expected)
        expected = net.grads()


def test_a_scaler_scales_the_deferred_loss() -> None:
    net, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=16.0)
    cp.UPGrad(TASKS).double().backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    expected = {key: 16 * grad for key, grad in net.grads().items() if grad is not None}
    net.zero_grad()
    loss = cp.UPGrad(TASKS).double().loss(net.losses(*batch())[0], shared=net.trunk.parameters())
    scaler.scale(loss).backward()
    assert_same_gradients(net.grads(), expected)  # type: ignore[arg-type]
