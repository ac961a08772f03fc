"""Auto-Lambda: the exact derivative, closures that fail, graphs, scalers, absent tasks, autocast."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import TASKS, Net, batch, same
from torch import Tensor, nn

import counterpoise as cp


def test_auto_lambda_follows_the_exact_derivative() -> None:
    """dL_val(θ − η Σλ_j g_j)/dλ_i = −η g_i·∇L_val, here by autograd; one Adam step has the sign of it."""
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
def test_auto_lambda_rests_where_no_wanted_task_has_a_label(absent: Tensor | None) -> None:
    net, balancer = Net(), cp.AutoLambda(TASKS, primary=["a"]).double()

    def training() -> dict[str, Tensor]:
        return net.losses(*batch())[0]

    balancer.backward(
        training(), shared=net.parameters(), validation=lambda: dict.fromkeys(TASKS, absent), training=training
    )
    torch.testing.assert_close(balancer.lam, torch.full((3,), 0.1, dtype=torch.float64))
    assert all(p.grad is not None for p in net.parameters())
    with pytest.raises(ValueError, match="the loss of task 'a' has no graph to go back through"):
        balancer.backward(
            training(),
            shared=net.parameters(),
            validation=lambda: {name: loss.detach() for name, loss in training().items()},
            training=training,
        )


def test_auto_lambda_puts_parameters_back_when_a_closure_fails() -> None:
    net = Net()
    before = [p.detach().clone() for p in net.parameters()]

    def broken() -> Any:
        raise RuntimeError("no batch left")

    with pytest.raises(RuntimeError, match="no batch left"):
        cp.AutoLambda(TASKS).backward(
            net.losses(*batch())[0], shared=net.parameters(), validation=broken, training=broken
        )
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_auto_lambda_keeps_a_graph_that_is_to_be_kept() -> None:
    """The parameters are moved and put back in between; a second pass finds them as they were."""
    net, balancer = Net(), cp.AutoLambda(TASKS).double()

    def training() -> dict[str, Tensor]:
        return net.losses(*batch())[0]

    losses = training()
    balancer.backward(losses, shared=net.parameters(), validation=training, training=training, retain_graph=True)
    net.zero_grad()
    torch.stack(list(losses.values())).sum().backward()
    again = Net()
    torch.stack(list(again.losses(*batch())[0].values())).sum().backward()
    same(net.grads(), again.grads())


def test_a_step_that_a_scaler_skips_leaves_no_trace_in_auto_lambda() -> None:
    """Not in λ, and not in the statistics of a BatchNorm, which would never recover from an infinite parameter."""
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


def test_auto_lambda_leaves_an_absent_task_where_it_is() -> None:
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
def test_auto_lambda_moves_what_autocast_sees(around: bool) -> None:
    """Autocast keeps half-precision copies of the parameters; the closures must not get those of another place."""
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
