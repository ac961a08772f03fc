"""Task gradients: the gradient of every parameter, for all passes and all places of comparison."""

import platform
from typing import Any

import pytest
import torch
from helpers.no_batch import NoBatch
from helpers.trunk_and_heads import (
    ALL,
    GRAM,
    KINDS,
    NEEDS_ROWS,
    TASKS,
    Net,
    assert_same_gradients,
    batch,
    flat,
    jacobian,
)

import counterpoise as cp
from counterpoise import gradients


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", GRAM)
def test_direction_weights_and_heads(name: str, passes: str) -> None:
    """The trunk gets Σ c_i g_i with c = `weights`; each head gets the gradient of its own loss."""
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


DIFFERENT = {*KINDS, *NEEDS_ROWS}  # the other methods use the passes in the same way


@pytest.mark.parametrize(
    "name", [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.slow) for name in ALL]
)
def test_all_passes_and_forms_of_losses_agree(name: str) -> None:
    found = []
    for losses_as, passes, through in (
        ("mapping", "loop", False),
        ("sequence", "batched", False),
        ("tensor", "loop", True),
        ("mapping", "batched", True),
        ("tensor", "batched", False),
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


def test_number_of_backward_passes() -> None:
    """Counted at the output of the trunk: T passes for parameters, one for features, no others."""
    net, count = Net(), 0

    def increment(*_: object) -> None:
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
        z.grad_fn.register_hook(increment)
        where: dict[str, Any] = {"shared": net.trunk.parameters(), "features": z}
        where = {place: where[place] for place in at}
        cp.CAGrad(TASKS, passes=passes).backward(losses, **where)  # type: ignore[arg-type]
        assert count == expected, (passes, at)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", [*KINDS, "bpgs", "static"])
def test_deferred_loss_runs_the_same_backward_pass(name: str, at: str) -> None:
    """`loss(…)` divided by 2 and scaled by 2⁸, as for accumulation with a GradScaler, gives gradients times 2⁷."""
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
    with pytest.raises(RuntimeError, match="vmap") as raised:
        cp.CAGrad(TASKS, passes="batched").backward(losses, shared=net.trunk.parameters())
    assert 'passes="auto" falls back to a loop' in raised.value.__notes__[0]


def test_graph_is_freed_unless_retained() -> None:
    net = Net()
    losses, z = net.losses(*batch())
    cp.PCGrad(TASKS).backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    cp.PCGrad(TASKS).backward(losses, features=z, retain_graph=True)
    balancer = cp.PCGrad(TASKS, passes="loop")
    balancer.backward(losses, shared=net.trunk.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        balancer.backward(losses, shared=net.trunk.parameters())


@pytest.mark.parametrize("tasks", [3, 5])
def test_inner_products_of_long_gradients_are_accurate(tasks: int) -> None:
    """The cosines of parallel gradients are 1 up to the precision that the solvers need."""
    row = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    gram = gradients.gram_matrix([[row * 1.1 * (i + 1)] for i in range(tasks)], 0)
    norms = gram.diagonal().sqrt()
    # The OpenBLAS in the aarch64 wheels of torch 2.4 adds the terms of a matrix product in fewer lanes.
    old = platform.machine() in ("aarch64", "arm64") and torch.__version__.startswith("2.4.")
    assert (gram / torch.outer(norms, norms) - 1).abs().max() < (1e-6 if old else 3e-7)
