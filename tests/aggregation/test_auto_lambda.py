"""Auto-Lambda: its derivative, failing closures, retained graphs, scalers, absent tasks, autocast."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import TASKS, Net, assert_same_gradients, batch
from torch import Tensor, nn

import counterpoise as cp


def test_update_follows_the_exact_derivative() -> None:
    """dL_val(θ − η Σλ_j g_j)/dλ_i = −η g_i·∇L_val, computed by autograd; the first Adam step has its sign."""
    net = Net()
    x, y = batch(0)
    held_out = batch(7)
    balancer = cp.AutoLambda(TASKS, virtual_lr=0.05, lr=1e-2, primary=["a", "c"]).double()
    before = [p.detach().clone() for p in net.parameters()]
    parameters = list(net.parameters())
    losses, _ = net.losses(x, y)
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses.values()]
    moves = [sum(0.1 * (row[k] if row[k] is not None else 0) for row in rows) for k in range(len(parameters))]
    with torch.no_grad():
        for p, s in zip(parameters, moves, strict=True):
            p.sub_(s, alpha=0.05)
    ahead = net.losses(*held_out)[0]
    v = torch.autograd.grad(ahead["a"] + ahead["c"], parameters, allow_unused=True)
    with torch.no_grad():
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)
    exact = torch.stack(
        [
            -0.05 * sum((g * h).sum() for g, h in zip(row, v, strict=True) if g is not None and h is not None)  # type: ignore[misc]
            for row in rows
        ]
    )
    losses, _ = net.losses(x, y)
    balancer.backward(
        losses,
        shared=net.parameters(),
        validation=lambda: net.losses(*held_out)[0],
        training=lambda: net.losses(x, y)[0],
    )
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    torch.testing.assert_close(balancer.adam.mean, 0.1 * exact, rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(balancer.lam, 0.1 - 1e-2 * exact.sign(), rtol=1e-4, atol=1e-6)
    assert balancer.weights is not None
    torch.testing.assert_close(balancer.weights, torch.full((3,), 0.1, dtype=torch.float64))
    for p, s in zip(parameters, moves, strict=True):
        torch.testing.assert_close(p.grad, s)


@pytest.mark.parametrize("absent", [None, torch.tensor(torch.nan)], ids=["left out", "nan"])
def test_no_update_without_labels_of_primary_tasks(absent: Tensor | None) -> None:
    net, balancer = Net(), cp.AutoLambda(TASKS, primary=["a"]).double()

    def training() -> dict[str, Tensor]:
        return net.losses(*batch())[0]

    balancer.backward(
        training(), shared=net.parameters(), validation=lambda: dict.fromkeys(TASKS, absent), training=training
    )
    torch.testing.assert_close(balancer.lam, torch.full((3,), 0.1, dtype=torch.float64))
    assert all(p.grad is not None for p in net.parameters())
    with pytest.raises(ValueError, match="the loss of task 'a' has no graph"):
        balancer.backward(
            training(),
            shared=net.parameters(),
            validation=lambda: {name: loss.detach() for name, loss in training().items()},
            training=training,
        )


def test_parameters_are_restored_when_a_closure_fails() -> None:
    net = Net()
    before = [p.detach().clone() for p in net.parameters()]

    def broken() -> Any:
        raise RuntimeError("no batch left")

    with pytest.raises(RuntimeError, match="no batch left"):
        cp.AutoLambda(TASKS).backward(
            net.losses(*batch())[0], shared=net.parameters(), validation=broken, training=broken
        )
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_retained_graph_stays_valid() -> None:
    """A second backward pass works, although the parameters were changed and restored in between."""
    net, balancer = Net(), cp.AutoLambda(TASKS).double()

    def training() -> dict[str, Tensor]:
        return net.losses(*batch())[0]

    losses = training()
    balancer.backward(losses, shared=net.parameters(), validation=training, training=training, retain_graph=True)
    net.zero_grad()
    torch.stack(list(losses.values())).sum().backward()
    again = Net()
    torch.stack(list(again.losses(*batch())[0].values())).sum().backward()
    assert_same_gradients(net.grads(), again.grads())


def test_skipped_step_does_not_change_state() -> None:
    """Neither λ nor BatchNorm statistics change, which would not recover from an infinite parameter."""
    net, norm = Net(), nn.BatchNorm1d(8).double()
    balancer = cp.AutoLambda(TASKS).double()
    x, y = batch()

    def training() -> dict[str, Tensor]:
        z = norm(net.trunk(x))
        return {task: (head(z)[:, 0] - y[:, i]).square().mean() for i, (task, head) in enumerate(net.heads.items())}

    parameters = [*net.parameters(), *norm.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    balancer.backward(training(), shared=parameters, validation=training, training=training)
    before = {key: value.clone() for key, value in balancer.state_dict().items()}
    for p in parameters:
        p.grad = None
    losses = training()
    losses["b"].register_hook(lambda grad: grad * torch.inf)
    balancer.backward(losses, shared=parameters, validation=training, training=training, scaler=scaler)
    assert any(p.grad is not None and not torch.isfinite(p.grad).all() for p in parameters)
    for key, value in balancer.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert torch.isfinite(norm.running_var).all()  # type: ignore[arg-type]
    balancer.backward(training(), shared=parameters, validation=training, training=training)
    assert balancer.adam.step == 2


def test_absent_task_keeps_its_weight() -> None:
    net, balancer = Net(), cp.AutoLambda(TASKS, lr=0.01).double()

    def losses(*absent: str) -> dict[str, Tensor | None]:
        return {task: None if task in absent else loss for task, loss in net.losses(*batch())[0].items()}

    def step(*absent: str) -> Tensor:
        def again() -> dict[str, Tensor | None]:
            return losses(*absent)

        balancer.backward(again(), shared=net.parameters(), validation=again, training=again)
        return balancer.lam.clone()

    first, second = step(), step("b")
    assert second[1] == first[1]
    assert (second != first).tolist() == [True, False, True]


@pytest.mark.parametrize("around", [False, True])
def test_autocast_uses_the_moved_parameters(around: bool) -> None:
    """Autocast caches half-precision copies of the parameters, which must not be used after a move."""
    net = Net(torch.float32)
    x, y = batch(dtype=torch.float32)
    seen: list[Tensor] = []

    def losses() -> dict[str, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = {task: loss.float() for task, loss in net.losses(x, y)[0].items()}
        seen.append(torch.stack(list(found.values())).detach())
        return found

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
        balancer = cp.AutoLambda(TASKS, virtual_lr=5.0)
        balancer.backward(losses(), shared=net.parameters(), validation=losses, training=losses)
        here, ahead, *sides = seen
        assert torch.equal(torch.stack(list(losses().values())), here)
    assert not torch.equal(ahead, here)
    assert not torch.equal(sides[0], sides[1])


def test_loss_passes_the_number_of_samples_on() -> None:
    found = []
    for deferred in (False, True):
        net = Net()
        balancer = cp.AutoLambda(TASKS)

        def again(net: Net = net) -> dict[str, Tensor]:
            return net.losses(*batch())[0]

        for samples in (5, 0):
            options: dict[str, Any] = {"shared": net.parameters(), "validation": again, "training": again}
            options["counts"] = torch.tensor([5, samples, 5])
            if deferred:
                balancer.loss(again(), **options).backward()
            else:
                balancer.backward(again(), **options)
        found.append(balancer.lam.clone())
    assert torch.equal(*found)
