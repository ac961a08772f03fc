"""Task gradients: what every parameter gets, whatever the path and the place where they are compared."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import ALL, GRAM, TASKS, Net, assert_same_gradients, batch, flat, jacobian
from torch import Tensor

import counterpoise as cp
from counterpoise import gradients


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", GRAM)
def test_direction_weights_and_heads(name: str, passes: str) -> None:
    """The trunk gets Σ c_i g_i with the c that `weights` shows, a head the gradient of its own loss."""
    net = Net()
    losses, _ = net.losses(*batch())
    rows = jacobian(net, losses)
    heads = {
        t: torch.autograd.grad(losses[t], [*head.parameters()], retain_graph=True) for t, head in net.heads.items()
    }
    balancer = cp.make(name, TASKS, passes=passes)
    value = balancer.backward(losses, shared=net.trunk.parameters())
    assert balancer.weights is not None
    expected = sum(w * row for w, row in zip(balancer.weights, rows.values(), strict=True))
    torch.testing.assert_close(flat(net), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(value, sum(losses.values()).detach())  # type: ignore[union-attr]
    for t, head in net.heads.items():
        for parameter, grad in zip(head.parameters(), heads[t], strict=True):
            torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("name", ALL)
def test_every_path_gives_the_same(name: str) -> None:
    found = []
    for losses_as in ("mapping", "sequence", "tensor"):
        for passes, through in (
            ("loop", False),
            ("batched", False),
            ("loop", True),
            ("batched", True),
            ("auto", False),
        ):
            net = Net()
            losses, z = net.losses(*batch())
            given: Any = {"mapping": losses, "sequence": list(losses.values())}.get(losses_as)
            given = torch.stack(list(losses.values())) if given is None else given
            balancer = cp.make(name, TASKS, passes=passes)
            for _ in range(2):
                where: dict[str, Any] = {"features": z} if through else {}
                balancer.backward(given, shared=net.trunk.parameters(), retain_graph=True, **where)
            found.append(net.grads())
    for other in found[1:]:
        assert_same_gradients(found[0], other)


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", GRAM)
def test_features_compare_at_the_representation(name: str, passes: str) -> None:
    net = Net()
    losses, z = net.losses(*batch())
    rows = torch.stack([torch.autograd.grad(loss, z, retain_graph=True)[0].flatten() for loss in losses.values()])
    balancer = cp.make(name, TASKS, passes=passes)
    balancer.backward(losses, features=z, retain_graph=True)
    assert balancer.weights is not None
    direction = (balancer.weights @ rows).view_as(z)
    expected = torch.autograd.grad(z, list(net.trunk.parameters()), direction, retain_graph=True)
    torch.testing.assert_close(flat(net), torch.cat([g.flatten() for g in expected]), rtol=1e-9, atol=1e-12)
    own = torch.autograd.grad(losses["b"], list(net.heads["b"].parameters()))
    for parameter, grad in zip(net.heads["b"].parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("passes", ["loop", "batched"])
def test_aggregated_heads(passes: str, at: str) -> None:
    net = Net()
    losses, z = net.losses(*batch())
    own = {t: torch.autograd.grad(losses[t], [*h.parameters()], retain_graph=True) for t, h in net.heads.items()}
    balancer = cp.MGDA(TASKS, heads="aggregated", passes=passes)  # type: ignore[arg-type]
    where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
    balancer.backward(losses, **where)
    assert balancer.weights is not None
    for weight, (t, head) in zip(balancer.weights, net.heads.items(), strict=True):
        for parameter, grad in zip(head.parameters(), own[t], strict=True):
            torch.testing.assert_close(parameter.grad, weight * grad)


def test_never_one_backward_more_than_tasks() -> None:
    """Counted where the trunk begins: T passes for parameters, a single one for features, none left over."""
    net, count = Net(), 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1

    counts = (
        ("loop", ["shared"], 3), ("batched", ["shared"], 1), ("auto", ["shared"], 3), ("auto", ["features"], 1),
        ("loop", ["shared", "features"], 3), ("auto", ["shared", "features"], 1),
    )  # fmt: skip
    for passes, at, expected in counts:
        count = 0
        losses, z = net.losses(*batch())
        assert z.grad_fn is not None
        z.grad_fn.register_hook(tick)
        where: dict[str, Any] = {"shared": net.trunk.parameters(), "features": z}
        where = {place: where[place] for place in at}
        cp.CAGrad(TASKS, passes=passes).backward(losses, **where)  # type: ignore[arg-type]
        assert count == expected, (passes, at)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", [*ALL, "bpgs", "static"])
def test_a_loss_for_frameworks_is_the_same_backward_pass(name: str, at: str) -> None:
    """`loss(…)` halved and scaled by 2⁸, as by accumulation and a GradScaler: the gradients of `backward`, times 2⁷."""
    grads = []
    for deferred in (False, True):
        net = Net()
        losses, z = net.losses(*batch())
        balancer = cp.make(name, TASKS).double()
        where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        if deferred:
            loss = balancer.loss(losses, **where)
            assert loss.requires_grad
            (loss / 2 * 2**8).backward()
        else:
            balancer.backward(losses, **where)
        grads.append({n: None if g is None else g * (1 if deferred else 2**7) for n, g in net.grads().items()})
    assert_same_gradients(*grads)


class NoBatch(torch.autograd.Function):
    """An operation that vmap refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grads[0].sum().item()  # vmap refuses to look
        return grads[0]


def test_auto_falls_back_to_a_loop() -> None:
    net, other = Net(), Net()
    x, y = batch()
    balancer = cp.CAGrad(TASKS)
    for _ in range(2):
        net.zero_grad()
        z = NoBatch.apply(net.trunk(x))  # type: ignore[no-untyped-call]
        losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(net.heads.items())}
        balancer.backward(losses, shared=net.trunk.parameters(), features=z)
    cp.CAGrad(TASKS, passes="loop").backward(other.losses(x, y)[0], shared=other.trunk.parameters())
    assert_same_gradients(net.grads(), other.grads())
    z = NoBatch.apply(net.trunk(x))  # type: ignore[no-untyped-call]
    losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(net.heads.items())}
    with pytest.raises(RuntimeError, match="vmap"):
        cp.CAGrad(TASKS, passes="batched").backward(losses, shared=net.trunk.parameters())


def test_the_graph_is_freed_or_kept() -> None:
    net = Net()
    losses, z = net.losses(*batch())
    cp.PCGrad(TASKS).backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    cp.PCGrad(TASKS).backward(losses, features=z, retain_graph=True)
    balancer = cp.PCGrad(TASKS, passes="loop")
    balancer.backward(losses, shared=net.trunk.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        balancer.backward(losses, shared=net.trunk.parameters())


@pytest.mark.parametrize("tasks", [3, 5])
def test_products_of_long_gradients_keep_their_digits(tasks: int) -> None:
    """A Gram matrix of parallel gradients has cosines of 1, to the digits that the solvers count on."""
    row = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    gram = gradients.gram_matrix([[row * 1.1 * (i + 1)] for i in range(tasks)], 0)
    norms = gram.diagonal().sqrt()
    assert (gram / torch.outer(norms, norms) - 1).abs().max() < 3e-7
