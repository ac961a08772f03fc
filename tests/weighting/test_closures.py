"""Optimisers that evaluate the loss several times per step, such as L-BFGS."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp

NAMES = cp.methods("loss")


def problem() -> tuple[Tensor, Any]:
    """Return the parameters and a function that computes two losses with a common minimum."""
    x = torch.tensor([3.0, -4.0, 2.0], requires_grad=True)

    def losses() -> Tensor:
        return torch.stack([x[:2].square().sum() + 0.1, 100 * ((x[1] - x[2]).square() + x[2].square()) + 0.1])

    return x, losses


def optimise(balancer: cp.Balancer, wrap: bool, steps: int = 3, **needs: Any) -> tuple[Tensor, Tensor, list[int]]:
    """Run L-BFGS; return the losses before and after, and the number of evaluations of each step."""
    x, losses = problem()
    optimizer = torch.optim.LBFGS([x], lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
    own = torch.optim.SGD(balancer.parameters(), lr=1e-3) if list(balancer.parameters()) else None
    evaluations: list[int] = []

    def closure() -> Tensor:
        evaluations[-1] += 1
        optimizer.zero_grad()
        value: Tensor = balancer(losses(), **needs)
        value.backward()
        return value

    first = losses().detach()
    for _ in range(steps):
        evaluations.append(0)
        optimizer.step(balancer.closure(closure) if wrap else closure)  # type: ignore[operator]
        if own is not None:
            own.step()
            own.zero_grad()
        balancer.step_end(losses().detach())
        balancer.epoch_end()
    return first, losses().detach(), evaluations


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_with_lbfgs_and_moves_its_state_once_per_step(name: str) -> None:
    balancer = cp.make(name, 2)
    assert isinstance(balancer, cp.Weighting)
    seen: list[Tensor] = []
    weigh = balancer.weigh

    def count(losses: Tensor, learning: bool) -> Any:
        seen.append(losses)
        assert learning
        return weigh(losses, learning)

    balancer.weigh = count  # type: ignore[method-assign]
    needs: dict[str, Any] = {"kpis": [0.5, 0.4]} if name == "dtp" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, last, evaluations = optimise(balancer, wrap=True, **needs)
    assert len(seen) == 3
    assert min(evaluations) > 1
    if name != "pbi":  # its weights may be negative, and the sum with such weights has no minimum
        assert bool((last < first).all())
    # The state is that of a balancer that saw the first evaluation of each step.
    other = cp.make(name, 2)
    if not list(other.parameters()) and not cp.describe(name).needs:
        for values in seen:
            other(values)
        for key, value in balancer.state_dict().items():
            torch.testing.assert_close(value, other.state_dict()[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_of_one_step_are_one_weighted_sum(name: str) -> None:
    balancer = cp.make(name, 2, importance=[2.0, 1.0], max_ratio=50.0, fixed={"l2": 0.5})
    assert isinstance(balancer, cp.Weighting)
    needs: dict[str, Any] = {"kpis": [0.5, 0.4]} if name == "dtp" else {}
    results = []
    x = torch.tensor([1.0, 20.0, 3.0], requires_grad=True)

    def closure() -> None:
        x.grad = None
        value = balancer(x.square(), **needs)
        value.backward()
        results.append((value.detach(), x.grad))

    evaluate = balancer.closure(closure)
    for factor in (1.0, 0.5, 2.0):
        with torch.no_grad():
            x.copy_(torch.tensor([1.0, 20.0, 3.0]) * factor)
        evaluate()
    weights = torch.cat([balancer.weights, torch.tensor([0.5])])  # type: ignore[list-item]
    for factor, (value, gradient) in zip((1.0, 0.5, 2.0), results, strict=True):
        at = torch.tensor([1.0, 20.0, 3.0]) * factor
        torch.testing.assert_close(value, (weights * at.square()).sum())
        torch.testing.assert_close(gradient, 2 * weights * at)
    state = copy.deepcopy(balancer.state_dict())
    evaluate()
    for key, value in balancer.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0, equal_nan=True)


def test_a_new_step_computes_new_weights_also_after_an_error() -> None:
    balancer = cp.UWO(2)

    def fail() -> None:
        balancer(torch.tensor([1.0, 2.0]))
        raise KeyError("in the closure")

    with pytest.raises(KeyError):
        balancer.closure(fail)()
    for losses in ([4.0, 5.0], [10.0, 1.0]):
        balancer.closure(lambda losses=losses: balancer(torch.tensor(losses)))()  # type: ignore[misc]
        torch.testing.assert_close(balancer.weights, 1 / torch.tensor(losses))
    balancer(torch.tensor([8.0, 2.0]))
    torch.testing.assert_close(balancer.weights, torch.tensor([0.125, 0.5]))


@pytest.mark.parametrize("call", ["backward", "loss"])
def test_backward_and_loss_may_be_used_in_a_closure(call: str) -> None:
    balancer, x = cp.UWO(2), torch.tensor([2.0, 4.0], requires_grad=True)
    evaluate = balancer.closure(lambda: getattr(balancer, call)(x.clone()))
    assert float(evaluate().detach()) == 2.0
    with torch.no_grad():
        x.mul_(3)
    assert float(evaluate().detach()) == 6.0


def test_a_constant_objective_is_refused_and_an_adaptive_one_warns() -> None:
    with pytest.raises(RuntimeError, match=r"value of UWO's objective is always the number of tasks.*closure\(closure"):
        optimise(cp.UWO(2), wrap=False)
    with pytest.warns(cp.BalanceWarning, match=r"BPGS changes its weights in every evaluation of L-BFGS"):
        optimise(cp.BPGS(2), wrap=False)
    with (
        pytest.warns(cp.BalanceWarning, match="FAMO changes its weights"),
        pytest.raises(RuntimeError, match=r"closure several times per step, pass it balancer.closure\(closure\)"),
    ):
        optimise(cp.FAMO(2), wrap=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimise(cp.Static(2), wrap=False)
        trained = cp.UWO(2)
        trained(torch.tensor([2.0, 100.0]))
        first, last, _ = optimise(trained.frozen(), wrap=False)
    assert bool((last < first).all())


def test_gradient_space_in_lbfgs_warns_and_a_constant_value_is_refused() -> None:
    """A gradient-space method has no `closure`, so the advice names `frozen` alone."""

    def evaluate(balancer: cp.Balancer) -> None:
        x, losses = problem()
        optimizer = torch.optim.LBFGS([x], max_iter=2)
        optimizer.step(lambda: balancer.backward(losses(), shared=[x]))

    for balancer in (cp.PCGrad(2), cp.PCGrad(2, weighting=cp.BPGS(2))):
        with pytest.warns(cp.BalanceWarning, match=r"PCGrad changes its weights .* objectives: train with") as found:
            evaluate(balancer)
        assert len(found) == 1
    with pytest.raises(RuntimeError, match=r"value of UWO's objective .* the losses: train with balancer.frozen\(\)$"):
        evaluate(cp.PCGrad(2, weighting=cp.UWO(2)))


def test_a_refused_objective_is_found_after_steps_of_another_optimiser() -> None:
    balancer = cp.UWO(2)
    for _ in range(40):
        balancer(torch.tensor([1.0, 2.0]))
    with pytest.raises(RuntimeError, match="always the number of tasks"):
        optimise(balancer, wrap=False, steps=20)
