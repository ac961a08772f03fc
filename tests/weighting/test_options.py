"""Options of every loss-space method: importance, max_ratio, fixed losses and frozen weights."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp

TASKS = ["a", "b", "c"]
LOSSES = (torch.tensor([1.0, 30.0, 0.1]), torch.tensor([0.7, 45.0, 0.2]), torch.tensor([0.5, 50.0, 0.05]))
IMPORTANCE = {"a": 3.0, "c": 0.5}
FACTORS = torch.tensor([3.0, 1.0, 0.5])
CONSTANT_WEIGHTS = ["static", "kendall", "imtl-l", "kendall-l1", "dtp", "dwa"]  # they do not depend on the losses


def arguments(name: str) -> dict[str, Any]:
    return {"kpis": [0.9, 0.5, 0.2]} if "kpis" in cp.describe(name).needs else {}


def run(balancer: cp.Balancer, name: str, steps: Sequence[Tensor] = LOSSES) -> tuple[Tensor, Tensor, Tensor]:
    """Take a few steps; return the value, the gradient of the losses and the weights of the last one."""
    value = leaf = torch.zeros(())
    for losses in steps:
        leaf = losses.clone().requires_grad_()
        value = balancer(leaf, **arguments(name))
        value.sum().backward()
        if losses is not steps[-1]:
            balancer.step_end(0.9 * losses)
            balancer.epoch_end()
    assert leaf.grad is not None
    assert balancer.weights is not None
    return value.detach(), leaf.grad, balancer.weights


@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_importance_multiplies_the_weights_and_keeps_a_fixed_sum(name: str, replicas: tuple[int, ...]) -> None:
    plain = cp.make(name, TASKS, batch_shape=replicas)
    weighted = cp.make(name, TASKS, batch_shape=replicas, importance=IMPORTANCE)
    assert isinstance(plain, cp.Weighting)
    steps = [losses.expand(*replicas, 3) for losses in LOSSES]
    value, _, weights = run(plain, name, steps)
    value_p, gradient_p, weights_p = run(weighted, name, steps)
    expected = weights * FACTORS
    if plain.normalised:
        expected = expected * weights.sum(-1, keepdim=True) / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights_p, expected)
    torch.testing.assert_close(gradient_p, expected)
    change = ((expected - weights) * steps[-1]).sum(-1)
    torch.testing.assert_close(value_p, value + change, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONSTANT_WEIGHTS)
def test_value_and_gradient_with_importance_agree_with_finite_differences(name: str) -> None:
    balancer = cp.make(name, TASKS, importance=IMPORTANCE, max_ratio=4.0).double()
    run(balancer, name, [losses.double() for losses in LOSSES])
    balancer.eval()
    at, step = LOSSES[-1].double(), 1e-3
    leaf = at.clone().requires_grad_()
    balancer(leaf).backward()
    for slot in range(3):
        move = step * torch.eye(3, dtype=torch.float64)[slot]
        slope = (balancer(at + move) - balancer(at - move)) / (2 * step)
        torch.testing.assert_close(slope.item(), leaf.grad[slot].item(), rtol=1e-6, atol=1e-9)  # type: ignore[index]


@pytest.mark.parametrize("name", cp.methods())
def test_importance_of_one_changes_nothing(name: str) -> None:
    plain = cp.make(name, TASKS)
    same = cp.make(name, TASKS, importance=[1.0, 1, 1], fixed={}, memory=False)
    assert same.importance is None
    assert list(plain.state_dict()) == list(same.state_dict())
    weighted = cp.make(name, TASKS, importance=IMPORTANCE, fixed={"l2": 1.0})
    assert list(plain.state_dict()) == list(weighted.state_dict())
    assert repr(plain) == repr(same)
    if cp.describe(name).space == "loss":
        for one, other in zip(run(plain, name), run(same, name), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"a": 2.0, "sge": 1.0}, ValueError, "importance has the task 'sge', expected some of 'a', 'seg'; did you"),
        ([1.0, -1.0], ValueError, "0 or more"),
        ({"a": float("nan")}, ValueError, "importance is nan, expected a finite number"),
        ([float("inf"), 1.0], ValueError, "finite"),
        ([1.0, 2.0, 3.0], ValueError, "importance has 3 numbers, expected 2"),
        ([0.0, 0.0], ValueError, "one above 0"),
        ({"a": "much"}, TypeError, "importance is 'much', expected a number"),
        ("ab", TypeError, "importance must be a mapping or a sequence of numbers, got str"),
        (3.0, TypeError, "got float"),
    ],
)
@pytest.mark.parametrize("method", [cp.UWO, cp.PCGrad])
def test_invalid_importance_is_refused(method: Any, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        method(["a", "seg"], importance=given)


def test_importance_of_absent_tasks_and_zero_importance() -> None:
    balancer = cp.UWO(TASKS, normalise=True, importance=IMPORTANCE)
    balancer({"a": torch.tensor(1.0), "b": torch.tensor(2.0)})
    torch.testing.assert_close(balancer.weights, torch.tensor([6 / 7, 1 / 7, 0.0]))
    balancer = cp.UWO(TASKS, importance={"b": 0.0})
    leaf = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    balancer(leaf).backward()
    torch.testing.assert_close(leaf.grad, torch.tensor([1.0, 0.0, 0.25]))


@pytest.mark.parametrize("ratio", [1.0, 7.0])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_max_ratio_bounds_the_weights(name: str, ratio: float) -> None:
    plain, bounded = cp.make(name, TASKS), cp.make(name, TASKS, max_ratio=ratio)
    assert isinstance(plain, cp.Weighting)
    _, _, weights = run(plain, name)
    value, gradient, limited = run(bounded, name)
    assert float(limited.max() / limited.min()) <= ratio * (1 + 1e-5)
    torch.testing.assert_close(gradient, limited)
    assert torch.isfinite(value)
    if plain.normalised:
        torch.testing.assert_close(limited.sum(), weights.sum())
    if float(weights.min()) <= 0:  # PBI has negative weights
        return
    assert bool((limited.argsort() == weights.argsort()).all()) or ratio == 1 or name in CONSTANT_WEIGHTS
    if float(weights.max() / weights.min()) <= ratio:
        torch.testing.assert_close(limited, weights, rtol=1e-6, atol=0)


def test_max_ratio_raises_weights_that_may_be_zero() -> None:
    """Lowering the other weights to a weight of zero would end the training."""
    balancer = cp.DTP(2, max_ratio=10.0)
    balancer(torch.ones(2), kpis=[1.0, 0.5])
    plain = cp.DTP(2)
    plain(torch.ones(2), kpis=[1.0, 0.5])
    assert balancer.weights is not None
    assert plain.weights is not None
    torch.testing.assert_close(balancer.weights, plain.weights[1] * torch.tensor([0.1, 1.0]))
    fixed = cp.Static(3, weights=[2.0, 0.0, 1.0], max_ratio=4.0)
    assert fixed(torch.tensor([1.0, 2.0, torch.nan])).item() == 3.0
    torch.testing.assert_close(fixed.weights, torch.tensor([2.0, 0.5, 0.0]))


def test_importance_is_applied_after_max_ratio_and_absent_tasks_do_not_count() -> None:
    balancer = cp.UWO(TASKS, max_ratio=10.0, importance={"a": 3.0})
    balancer({"a": torch.tensor(1e-6), "b": torch.tensor(2.0)})
    torch.testing.assert_close(balancer.weights, torch.tensor([15.0, 0.5, 0.0]))
    balancer({"a": torch.tensor(1e-6)})
    torch.testing.assert_close(balancer.weights, torch.tensor([3e6, 0.0, 0.0]))
    for wrong in (0.5, float("nan"), -1.0):
        with pytest.raises(ValueError, match=r"max_ratio is .*, expected a number that is 1 or more"):
            cp.BPGS(2, max_ratio=wrong)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_frozen_is_static_with_the_last_weights(name: str, memory: bool) -> None:
    balancer = cp.make(name, TASKS, fixed={"l2": 0.5}, importance=IMPORTANCE, memory=memory)
    with pytest.raises(RuntimeError, match="no weights to freeze: run a training step first"):
        balancer.frozen()
    run(balancer, name, [torch.cat([losses, torch.ones(1)]) for losses in LOSSES])
    state = copy.deepcopy(balancer.state_dict())
    frozen = balancer.frozen()
    torch.testing.assert_close(frozen.weight, balancer.weights, rtol=0, atol=0)
    for key, value in balancer.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0, equal_nan=True)
    assert frozen.tasks == balancer.tasks
    value = frozen({"a": torch.tensor(1.0), "b": torch.tensor(1.0), "c": torch.tensor(1.0), "l2": torch.tensor(4.0)})
    torch.testing.assert_close(value, frozen.weight.sum() + 2.0)


def test_frozen_needs_the_weight_of_every_task() -> None:
    balancer = cp.UWO(TASKS)
    balancer({"a": torch.tensor(1.0), "b": torch.tensor(2.0)})
    with pytest.raises(ValueError, match="task 'c' was absent in the last step"):
        balancer.frozen()
    remembering = cp.UWO(TASKS, memory=True)
    for task, loss in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        remembering({task: torch.tensor(loss)})
    torch.testing.assert_close(remembering.frozen().weight, torch.tensor([1.0, 0.5, 0.25]))
    shared = torch.tensor([1.0, 2.0], requires_grad=True)
    combined = cp.UPGrad(2)
    combined.backward([shared.sum(), shared[0] - shared[1]], shared=[shared])
    torch.testing.assert_close(combined.frozen().weight, combined.weights)
    dropping = cp.GradDrop(2)
    dropping.backward([shared.sum(), shared[0] - shared[1]], shared=[shared])
    with pytest.raises(RuntimeError, match="GradDrop has no weights to freeze"):
        dropping.frozen()


class Count(torch.autograd.Function):
    """Return the input, and count the backward passes."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        Count.passes += 1
        return grads[0]


def losses_of(x: Tensor) -> dict[str, Tensor]:
    """Return three tasks and two more losses of one graph."""
    z = Count.apply(x)  # type: ignore[no-untyped-call]
    a, b, c = z[..., 0].square(), 30 + z.sum(-1).square(), z[..., 1].exp()
    return {"a": a, "l2": z.square().sum(-1), "b": b, "c": c, "aux": z[..., 2].sin()}


FIXED = {"l2": 1e-2, "aux": 0.5}
ORDERS = {"listed": ["a", "l2", "b", "c", "aux"], "not listed": TASKS}


@pytest.mark.parametrize("form", ["mapping", "sequence", "tensor"])
@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_fixed_losses_are_added_with_their_factors(name: str, replicas: tuple[int, ...], order: str, form: str) -> None:
    x = torch.tensor([0.3, -1.2, 0.8]).expand(*replicas, 3).clone().requires_grad_()
    names = ORDERS[order] if order == "listed" else [*TASKS, *FIXED]
    for call in ("call", "backward", "loss"):
        balancer = cp.make(name, ORDERS[order], fixed=FIXED, batch_shape=replicas)
        assert balancer.tasks == tuple(TASKS)
        plain = cp.make(name, TASKS, batch_shape=replicas)
        given = losses_of(x)
        expected = plain({task: given[task] for task in TASKS}, **arguments(name))
        expected = expected + sum(factor * given[key] for key, factor in FIXED.items())
        (gradient,) = torch.autograd.grad(expected.sum(), x)
        losses: Any = losses_of(x)
        losses = losses if form == "mapping" else [losses[key] for key in names]
        losses = torch.stack(losses, -1) if form == "tensor" else losses
        x.grad, Count.passes = None, 0
        if call == "backward":
            value = balancer.backward(losses, **arguments(name))
        else:
            value = (balancer if call == "call" else balancer.loss)(losses, **arguments(name))
            value.sum().backward()
        assert Count.passes == 1
        expected = expected.sum() if call == "loss" else expected
        torch.testing.assert_close(value.detach(), expected.detach())
        torch.testing.assert_close(x.grad, gradient)
        torch.testing.assert_close(balancer.weights, plain.weights)


def test_absent_fixed_losses_and_absent_tasks() -> None:
    for absent in ({}, {"l2": None}, {"l2": torch.tensor(torch.nan)}):
        balancer = cp.UWO(["a", "b"], fixed={"l2": 0.1})
        assert balancer({"a": torch.tensor(2.0), "b": torch.tensor(3.0), **absent}).item() == 2.0
    x = torch.tensor(3.0, requires_grad=True)
    balancer({"l2": x.square()}).backward()
    torch.testing.assert_close(x.grad, torch.tensor(0.6))
    assert balancer.weights is not None
    assert not balancer.weights.any()
    strict = cp.UWO(["a", "b"], fixed={"l2": 0.1}, strict=True)
    with pytest.raises(ValueError, match="the fixed loss 'l2' is not finite"):
        strict({"a": x, "b": x, "l2": x * torch.nan})


@pytest.mark.parametrize("broken", [0, 2])
def test_a_loss_that_is_not_finite_in_a_stack_with_fixed_losses_gives_no_gradient(broken: int) -> None:
    """The graph of the root would turn a zero gradient into NaN."""
    w = torch.ones(3, requires_grad=True)
    losses = [2 * w[1], 3 * w[2]]
    losses.insert(broken, (w[0] - 1).sqrt() * torch.nan)
    cp.Static(TASKS, fixed={"c": 0.1})(torch.stack(losses)).backward()
    torch.testing.assert_close(w.grad, torch.tensor([0.0, 2.0, 0.3 if broken == 0 else 3.0]))


@pytest.mark.parametrize(
    ("tasks", "fixed", "error", "message"),
    [
        (["a"], {"a": 1.0}, ValueError, "expected at least one task to balance"),
        (["a"], {"b": "x"}, TypeError, r"fixed\['b'\] is 'x', expected a number"),
        (["a"], {"b": float("nan")}, ValueError, r"fixed\['b'\] is nan, expected a finite number"),
        (["a"], ["b"], TypeError, "fixed must be a mapping of names to factors, got list"),
    ],
)
def test_invalid_factors_are_refused(tasks: Any, fixed: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cp.Static(tasks, fixed=fixed)


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        ({"a": torch.ones(()), "c": torch.ones(())}, ValueError, "unknown task 'c'"),
        ([torch.ones(())], ValueError, "got 1 losses, expected 2: one for each of 'a', 'l2'"),
        (torch.ones(3), ValueError, r"has shape \(3,\), expected \(…, 2\)"),
        ([torch.ones(()), torch.ones(2)], ValueError, "the fixed loss 'l2' has shape"),
        ([torch.ones(()), 3.0], TypeError, "the fixed loss 'l2' must be a tensor or None, got float"),
        (3.0, TypeError, "losses must be a tensor, a mapping or a sequence of scalars, got float"),
    ],
)
def test_invalid_losses_beside_fixed_ones_are_refused(losses: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cp.Static(["a"], fixed={"l2": 1.0})(losses)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_all_options_compile_to_one_graph(memory: bool) -> None:
    torch._dynamo.reset()
    options: dict[str, Any] = {"importance": IMPORTANCE, "fixed": FIXED, "memory": memory, "max_ratio": 20.0}
    fast, slow = cp.BPGS(TASKS, **options), cp.BPGS(TASKS, **options)
    one, two = (torch.tensor([0.3, -1.2, 0.8], requires_grad=True) for _ in range(2))

    def losses(x: Tensor, factor: Tensor) -> dict[str, Tensor]:
        given = {"a": x[0].square(), "b": 30 + x.sum(), "c": x[1].exp(), "aux": x[2].sin(), "l2": x.square().sum()}
        return given | {"c": given["c"] * factor}

    compiled = torch.compile(lambda x, factor: fast(losses(x, factor)), fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for factor in (1.0, 0.1, torch.nan, 2.0):
            one.grad = two.grad = None
            value, expected = compiled(one, torch.tensor(factor)), slow(losses(two, torch.tensor(factor)))
            value.backward()
            expected.backward()
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(fast.weights, slow.weights)
            torch.testing.assert_close(fast.state_dict(), slow.state_dict())
            if factor == factor:
                torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("name", ["dtp", "rlw", "cov-weighting", "uw-o", "bpgs"])
def test_frozen_with_memory_keeps_the_weights_of_the_tasks_of_the_last_step(name: str) -> None:
    w = torch.ones(3, requires_grad=True)
    balancer = cp.make(name, TASKS, memory=True)
    for step, tasks in enumerate((TASKS, TASKS, TASKS, ("a", "c"))):
        needs: dict[str, Any] = (
            {"kpis": {task: 0.2 + 0.1 * step + 0.2 * k for k, task in enumerate(tasks)}} if name == "dtp" else {}
        )
        losses = {task: (k + step + 1.0) * w[k] for k, task in enumerate(TASKS) if task in tasks}
        balancer.backward(losses, **needs)
    weights, frozen = balancer.weights, balancer.frozen().weight
    assert weights is not None
    torch.testing.assert_close(frozen[[0, 2]], weights[[0, 2]], rtol=0, atol=0)
    assert weights[1] == 0 < frozen[1]
