"""The short way to the objective gives the numbers of the general way, and leaves to it what it does not cover."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.weighting import _direct
from counterpoise.weighting.base import Weighting

pytestmark = pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")  # negative losses
METHODS = {name: cp.describe(name).build for name in cp.methods("loss")}
DIRECT = [
    name
    for name, build in METHODS.items()
    if issubclass(build, Weighting) and build.weigh_floats is not Weighting.weigh_floats
]


def run(name: str, batches: list[list[float]], form: str, dtype: torch.dtype, general: bool) -> list[Any]:
    """Train on the losses of each batch, and return all numbers that come out."""
    torch.manual_seed(0)
    balancer = cp.make(name, [f"t{i}" for i in range(len(batches[0]))]).to(dtype)
    optimizer = torch.optim.SGD(balancer.parameters(), lr=0.01) if list(balancer.parameters()) else None
    found: list[Any] = []
    for batch in batches:
        leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in batch]
        terms = [1.0 * leaf for leaf in leaves]
        losses: Any = {"list": terms, "tensor": None, "dict": dict(zip(balancer.tasks, terms, strict=True))}[form]
        losses = torch.stack(terms) if losses is None else losses
        with pytest.MonkeyPatch.context() as patch:
            if general:
                patch.setattr(cp.weighting.base, "direct_objective", lambda *_: None)
            objective = balancer(losses)
        (3.0 * objective).backward()
        found += [objective.detach(), *(leaf.grad for leaf in leaves), balancer.weights, balancer.losses]
        found += [p.grad.clone() for p in balancer.parameters() if p.grad is not None]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        balancer.step_end([leaf.detach() for leaf in leaves])
        balancer.epoch_end()
    return [*found, *balancer.state_dict().values()]


losses = st.floats(1e-12, 1e12) | st.floats(-10.0, 10.0) | st.just(0.0)


@pytest.mark.parametrize("name", DIRECT)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_direct_way_equals_the_general_way(name: str, data: st.DataObject) -> None:
    tasks = data.draw(st.integers(2, 5))
    batch = st.lists(losses, min_size=tasks, max_size=tasks)
    batches = data.draw(st.lists(batch, min_size=1, max_size=3))
    form = data.draw(st.sampled_from(["list", "tensor", "dict"]))
    short, long = (run(name, batches, form, torch.float64, general) for general in (False, True))
    for ours, expected in zip(short, long, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("name", DIRECT)
def test_direct_way_is_taken(name: str) -> None:
    """Otherwise the comparison above compares the general way with itself."""
    balancer = cp.make(name, 2)
    assert isinstance(balancer, Weighting)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    balancer([x[0], x[1]])
    balancer.step_end(x)
    assert _direct.direct_objective(balancer, x) is not None


@pytest.mark.parametrize("name", DIRECT)
def test_float32_results_are_those_of_the_general_way(name: str) -> None:
    batches = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).tolist()
    short, long = (run(name, batches, "dict", torch.float32, general) for general in (False, True))
    for ours, expected in zip(short, long, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-7, atol=0)


def test_subclass_that_changes_the_rule_is_not_overruled() -> None:
    class Doubled(cp.UWO):
        def weigh(self, losses: Tensor, learning: bool) -> cp.functional.Step:
            return cp.functional.weighted_sum(2 * torch.ones_like(losses), losses)

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    Doubled(2)([x[0], x[1]]).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["static", "bpgs"])
def test_second_derivatives(name: str) -> None:
    """Weights are constants: the second derivative is the weighted sum of those of the losses."""
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    balancer = cp.make(name, 2).double()
    (first,) = torch.autograd.grad(balancer([x[0] ** 2, x[1] ** 3]), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert balancer.weights is not None
    torch.testing.assert_close(second, balancer.weights * torch.tensor([2.0, 18.0], dtype=torch.float64))


def test_geometric_mean_refuses_second_derivatives() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    objective = cp.GeometricMean(2)([x[0] ** 2, x[1] ** 3])
    with pytest.raises(RuntimeError, match="not linear"):
        torch.autograd.grad(objective, x, create_graph=True)


def test_frozen_parameter_gets_no_gradient() -> None:
    balancer = cp.BPGS(2).requires_grad_(False)
    x = nn.Parameter(torch.tensor([1.0, 2.0]))
    balancer([x[0], x[1]]).backward()
    assert x.grad is not None
    assert balancer.theta.grad is None


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("absent", [0, 1, 2])
def test_nan_in_any_place_marks_an_absent_task(name: str, absent: int) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    losses = [x[i] * (float("nan") if i == absent else 1.0) for i in range(3)]
    balancer = cp.make(name, 3)
    balancer(losses).backward()
    assert balancer.weights is not None
    assert balancer.weights[absent] == 0
    assert torch.isfinite(balancer.weights).all()


@pytest.mark.parametrize("name", DIRECT)
def test_state_that_was_changed_between_steps_is_used(name: str) -> None:
    """Also by `.data`, which does not change the version of the tensor, and in copied and loaded balancers."""
    batches = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    balancer = cp.make(name, 4)
    for batch in batches[:2]:
        balancer(batch.float().requires_grad_())
        balancer.step_end(batch.float())
        balancer.epoch_end()
    loaded = cp.make(name, 4)
    loaded(batches[2].float().requires_grad_())  # its own state is replaced
    loaded.load_state_dict(balancer.state_dict())
    found = []
    for changed, general in ((copy.deepcopy(balancer), False), (loaded, False), (balancer, True)):
        changed.double()
        for state in changed.state_dict().values():
            if state.is_floating_point():
                state.data.mul_(1.25)
        with pytest.MonkeyPatch.context() as patch:
            if general:
                patch.setattr(cp.weighting.base, "direct_objective", lambda *_: None)
            objective = changed(batches[2].clone().requires_grad_())
        found.append([objective.detach(), changed.weights, *changed.state_dict().values()])
    for ours in found[:2]:
        torch.testing.assert_close(ours, found[2], rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", DIRECT)
def test_reset_restores_the_first_step(name: str) -> None:
    balancer = cp.make(name, 3)
    first, second = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]])
    found = []
    for _ in range(2):
        for batch in (first, second):
            balancer(batch.clone().requires_grad_())
            balancer.step_end(batch)
        found.append([balancer.weights, *map(torch.clone, balancer.state_dict().values())])
        balancer.reset()
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_of_many_tasks_are_those_of_the_general_way(groups: int) -> None:
    values = torch.rand(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4
    balancer = cp.GO4Align(24, groups=groups, step_size=0.0).double()
    balancer(values.clone().requires_grad_())
    expected = cp.functional.go4align_weights(balancer.log_probabilities, values, groups=groups)
    assert balancer.weights is not None
    torch.testing.assert_close(balancer.weights, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("losses", [[1.0, 1e300], [1e-300, 1.0]])
def test_ratios_that_overflow_take_the_general_way(losses: list[float]) -> None:
    balancer = cp.SoftAdapt(2).double()
    for batch in ([1e-300, 1.0], losses, [1.0, 1.0]):
        balancer(torch.tensor(batch, dtype=torch.float64, requires_grad=True))
        assert balancer.weights is not None
        assert torch.isfinite(balancer.weights).all()


def test_dwa_weights_follow_the_precision_of_its_state() -> None:
    balancer, batch = cp.DWA(2), torch.tensor([1.0, 3.0])
    for factor in (1.0, 0.7):
        balancer(factor * batch.sqrt().requires_grad_())
        balancer.epoch_end()
    balancer(batch.clone().requires_grad_())
    balancer.double()(batch.double().requires_grad_())
    assert balancer.weights is not None
    assert torch.equal(balancer.weights, cp.functional.dwa_weights(balancer.last, balancer.before_last))
