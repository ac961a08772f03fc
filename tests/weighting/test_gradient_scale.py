"""Weightings from gradient norms: GradNormalise, LRA, NTK, and BPGS on gradients."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.balance_warnings import caught
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.weighting._gradients import Schedule

TASKS = ["a", "b", "c"]


class Net(nn.Module):
    """A shared layer and three heads whose losses differ by orders of magnitude."""

    def __init__(self, factors: tuple[float, ...] = (1.0, 100.0, 0.01)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(5, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in factors)
        self.factors = factors
        self.x = torch.randn(16, 5)

    def residuals(self) -> dict[str, Tensor]:
        z = torch.tanh(self.shared(self.x))
        heads = zip(TASKS, self.heads, self.factors, strict=True)
        return {task: factor**0.5 * (head(z) - 1) for task, head, factor in heads}

    def losses(self) -> dict[str, Tensor]:
        return {task: r.square().mean() for task, r in self.residuals().items()}

    def norms(self) -> Tensor:
        """Return the gradient norms of the losses on the shared layer."""
        parameters = list(self.shared.parameters())
        rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in self.losses().values()]
        return torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])


def step(balancer: cp.Balancer, net: Net, **needs: Any) -> Tensor:
    """Run one backward pass and return the weights."""
    net.zero_grad()
    if isinstance(balancer, cp.NTK):
        needs["residuals"] = net.residuals()
        needs["losses"] = {task: r.square().mean() for task, r in needs["residuals"].items()}
    balancer.backward(needs.pop("losses", None) or net.losses(), shared=net.shared.parameters(), **needs)
    assert balancer.weights is not None
    return balancer.weights


SCALE: dict[str, Callable[..., cp.Weighting]] = {
    "grad-normalise": cp.GradNormalise,
    "lra": cp.LRA,
    "ntk": cp.NTK,
    "bpgs": lambda tasks, **options: cp.BPGS(tasks, statistic="gradient", **options),
}


@given(
    every=st.integers(1, 7),
    batches=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=60),
)
def test_each_task_is_measured_when_it_first_appears_and_at_least_every_so_many_of_its_steps(
    every: int, batches: list[set[int]]
) -> None:
    schedule, since = Schedule(every), dict[int, int]()
    for number, tasks in enumerate(batches):
        expected = any(since.get(task, every) >= every for task in tasks)
        assert schedule.is_due(tasks) == expected
        since |= {task: 1 if expected else since[task] + 1 for task in tasks}
        restored = Schedule(every)
        restored.set_extra_state(schedule.get_extra_state())
        assert (restored.ages, restored.steps) == (since, number + 1)
    complete = Schedule(every)
    assert [complete.is_due(range(3)) for _ in range(30)] == [step % every == 0 for step in range(30)]


@pytest.mark.parametrize(("absent", "memory"), [("key", False), ("key", True), ("nan", False), ("count", False)])
@pytest.mark.parametrize("name", [name for name in SCALE if name != "ntk"])
def test_tasks_of_alternating_batches_are_all_measured_and_trained(name: str, absent: str, memory: bool) -> None:
    torch.manual_seed(0)
    w = torch.zeros(2, requires_grad=True)
    balancer = SCALE[name](["a", "b"], memory=memory)
    optimizer = torch.optim.Adam([{"params": [w]}, *balancer.param_groups()], lr=1e-2)
    for step_number in range(200):
        index = step_number % 2
        loss = [1.0, 1000.0][index] * ((w[index] - 3).square() + 0.1)
        missing = {"key": None, "nan": torch.tensor(torch.nan), "count": 0 * w[1 - index]}[absent]
        counts = torch.tensor([1 - index, index]) if absent == "count" else None
        optimizer.zero_grad()
        balancer.backward([loss, missing][:: 1 - 2 * index], shared=[w], counts=counts)
        optimizer.step()
    assert (w > 0.3).all()


@pytest.mark.parametrize("name", list(SCALE))
def test_importance_max_ratio_fixed_and_frozen(name: str) -> None:
    net, plain, important = Net(), SCALE[name](TASKS), SCALE[name](TASKS, importance={"a": 3.0})
    weights = step(plain, net)
    gradient = net.shared.weight.grad
    expected = weights * torch.tensor([3.0, 1.0, 1.0])
    if plain.normalised:
        expected *= weights.sum() / expected.sum()
    torch.testing.assert_close(step(important, net), expected)
    torch.testing.assert_close(important.frozen().weight, expected)
    limited = step(SCALE[name](TASKS, max_ratio=7.0), net)
    assert limited.max() <= 7 * (1 + 1e-5) * limited.min()
    assert weights.max() > 7 * weights.min()
    l2 = {"l2": net.shared.weight.square().sum()}
    residuals: dict[str, Any] = {"residuals": net.residuals()} if name == "ntk" else {}
    net.zero_grad()
    parameters = net.shared.parameters()
    SCALE[name](TASKS, fixed={"l2": 0.5}).backward(net.losses() | l2, shared=parameters, **residuals)
    assert gradient is not None
    torch.testing.assert_close(net.shared.weight.grad, gradient + net.shared.weight.detach())


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_grad_normalise_is_inverse_to_the_norms(exponent: float) -> None:
    net = Net()
    weights = step(cp.GradNormalise(TASKS, exponent=exponent), net)
    expected = net.norms() ** -exponent
    torch.testing.assert_close(weights, 3 * expected / expected.sum())


def test_grad_normalise_divides_the_gradient_by_shares() -> None:
    net = Net()
    shares = {"a": 1.0, "b": 2.0, "c": 5.0}
    weights = step(cp.GradNormalise(TASKS, shares=shares), net)
    contributions = weights * net.norms()
    torch.testing.assert_close(contributions / contributions.sum(), torch.tensor([1.0, 2.0, 5.0]) / 8)


def test_grad_normalise_keeps_a_running_mean_of_log_norms() -> None:
    net, balancer = Net(), cp.GradNormalise(TASKS, every=1, beta=0.7)
    expected = net.norms().log()
    step(balancer, net)
    for _ in range(3):
        with torch.no_grad():
            net.shared.weight.mul_(1.5)
        expected = 0.7 * expected + 0.3 * net.norms().log()
        step(balancer, net)
    torch.testing.assert_close(balancer.log_norms, expected)


def entries(net: Net) -> tuple[Tensor, Tensor]:
    """Return the mean absolute gradient entry of each loss, and the largest."""
    parameters = list(net.shared.parameters())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in net.losses().values()]
    flat = torch.stack([torch.cat([g.flatten() for g in row]).abs() for row in rows])
    return flat.mean(-1), flat.amax(-1)


@pytest.mark.parametrize("form", ["max-weighted-mean", "max-mean", "mean-mean"])
def test_lra_follows_its_equation(form: Any) -> None:
    net, balancer = Net(), cp.LRA(TASKS, reference="b", every=1, alpha=0.3, form=form)
    weights = torch.ones(3)
    for _ in range(3):
        mean, largest = entries(net)
        numerator = mean[1] if form == "mean-mean" else largest[1]
        target = numerator / (mean * weights if form == "max-weighted-mean" else mean)
        weights = 0.7 * weights + 0.3 * target
        weights[1] = 1.0
        torch.testing.assert_close(step(balancer, net), weights)


def test_ntk_weights_are_inverse_to_the_traces() -> None:
    """The estimate from random signs is exact if the gradients of different residuals are orthogonal."""
    w = torch.arange(1.0, 7.0, requires_grad=True)
    residuals = {"a": 3 * w[:4], "b": w[4:], "c": w[:3].square()}
    losses = {task: r.square().mean() for task, r in residuals.items()}
    traces = torch.tensor([9.0, 1.0, (2 * w[:3]).square().mean().item()])
    balancer = cp.NTK(TASKS)
    balancer.backward(losses, shared=[w], residuals=residuals)
    assert balancer.weights is not None
    torch.testing.assert_close(balancer.weights, traces.sum() / traces)


@pytest.mark.parametrize("name", SCALE)
def test_gradients_are_measured_as_the_schedule_says(name: str) -> None:
    net, balancer = Net(), SCALE[name](TASKS, every=3)
    history = []
    for _ in range(7):
        history.append(step(balancer, net))
        with torch.no_grad():
            net.shared.weight.mul_(1.3)
            net.heads[0].weight.mul_(1.5)  # type: ignore[operator]
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(history)]
    assert changed == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", SCALE)
def test_steps_between_measurements_run_one_backward_pass(name: str) -> None:
    net, balancer = Net(), SCALE[name](TASKS, every=4)
    passes = []
    net.shared.weight.register_hook(lambda grad: passes.append(1))
    counts = []
    for _ in range(5):
        passes.clear()
        step(balancer, net)
        counts.append(len(passes))
    assert counts == [4, 1, 1, 1, 4]


@pytest.mark.parametrize("name", ["grad-normalise", "bpgs"])
def test_contribution_is_invariant_to_the_scale_of_one_loss(name: str) -> None:
    def contributions(factors: tuple[float, ...]) -> Tensor:
        net = Net(factors)
        share = step(SCALE[name](TASKS), net) * net.norms()
        return share / share.sum()

    torch.testing.assert_close(contributions((1.0, 1.0, 1.0)), contributions((1.0, 1e4, 1e-3)), rtol=1e-4, atol=0.0)


def test_bpgs_on_gradients_is_calibrated_to_inverse_norms_and_bounded() -> None:
    net = Net()
    balancer = cp.BPGS(TASKS, statistic="gradient")
    weights = step(balancer, net)
    inverse = 1 / net.norms()
    torch.testing.assert_close(weights, inverse / inverse.sum(), rtol=1e-4, atol=0.0)
    assert balancer.theta.grad is not None
    torch.testing.assert_close(
        balancer.theta.grad, torch.zeros(3), atol=1e-3, rtol=0.0
    )  # the calibration is stationary
    with torch.no_grad():
        balancer.theta.copy_(torch.tensor([50.0, -50.0, 0.0]))
    step(balancer, net)
    log = net.norms().double().log()
    reach = log.std(correction=0) * (2**0.5 + 0.1)
    assert balancer.geometry is not None
    expected = torch.stack([log.mean() + reach, log.mean() - reach, log.mean()])
    torch.testing.assert_close(balancer.geometry.s, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCALE)
def test_resumed_run_continues_with_the_same_weights(name: str) -> None:
    net = Net()
    straight = SCALE[name](TASKS, every=3)
    for _ in range(4):
        step(straight, net)
        with torch.no_grad():
            net.shared.weight.mul_(1.1)
    resumed = SCALE[name](TASKS, every=3)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for _ in range(4):
        assert torch.equal(step(straight, net), step(resumed, net))
        with torch.no_grad():
            net.shared.weight.mul_(1.1)


@pytest.mark.parametrize("name", [name for name in SCALE if name != "ntk"])
def test_weighting_of_a_gradient_space_method(name: str) -> None:
    net, other = Net(), Net()
    alone = step(SCALE[name](TASKS), net)
    combined = cp.PCGrad(TASKS, weighting=SCALE[name](TASKS))
    combined.backward(other.losses(), shared=other.shared.parameters())
    assert combined.weighting is not None
    assert combined.weighting.weights is not None
    torch.testing.assert_close(combined.weighting.weights, alone)
    mean = cp.MGDA(TASKS, weighting=SCALE[name](TASKS))
    loss = mean.loss(other.losses(), shared=other.shared.parameters())
    loss.backward()


@pytest.mark.parametrize("name", [name for name in SCALE if name != "ntk"])
def test_absent_task_keeps_its_statistics(name: str) -> None:
    net, balancer = Net(), SCALE[name](TASKS, every=1)
    before = step(balancer, net)
    losses: dict[str, Tensor | None] = {**net.losses(), "b": None}
    balancer.backward(losses, shared=net.shared.parameters())
    assert balancer.weights is not None
    assert balancer.weights[1] == 0
    torch.testing.assert_close(
        step(balancer, net)[0] / step(balancer, net)[1], before[0] / before[1], rtol=0.5, atol=0.0
    )


@pytest.mark.parametrize("name", [name for name in SCALE if name != "ntk"])
def test_parameters_of_another_network_are_refused(name: str) -> None:
    net, other = Net(), Net()
    balancer = SCALE[name](TASKS)
    with pytest.raises(ValueError, match="no task depends on any of the tensors"):
        balancer.backward(net.losses(), shared=other.shared.parameters())
    with pytest.raises(ValueError, match="no task depends on any of the tensors"):
        cp.CAGrad(TASKS, weighting=SCALE[name](TASKS)).backward(net.losses(), shared=other.shared.parameters())


@pytest.mark.parametrize("name", [*(name for name in SCALE if name != "ntk"), "gradnorm", "gradnorm-proxy"])
def test_a_task_without_a_shared_gradient_warns_once(name: str) -> None:
    net, probe = Net(), nn.Linear(5, 1)
    balancer = SCALE[name](TASKS) if name in SCALE else cp.make(name, TASKS, **{"every": 1} if "proxy" in name else {})

    def losses() -> dict[str, Tensor]:
        return net.losses() | {"c": probe(net.x).square().mean()}

    def train() -> None:
        for _ in range(3):
            balancer.backward(losses(), shared=net.shared.parameters())

    (message,) = caught(train)
    assert "task 'c' does not depend on" in message
    assert "Pass it as fixed={'c': factor}" in message
    if name in SCALE:  # a batch that has this task alone is not an error once another one was measured
        balancer.backward({"c": losses()["c"]}, shared=net.shared.parameters())


@pytest.mark.parametrize("name", SCALE)
def test_training_call_needs_shared_parameters(name: str) -> None:
    balancer = SCALE[name](TASKS)
    with pytest.raises(ValueError, match=r"needs shared="):
        balancer(Net().losses())
    with torch.no_grad():
        assert torch.isfinite(balancer(Net().losses())) or name == "bpgs"


def test_features_measure_gradients_at_the_representation() -> None:
    net = Net()
    z = torch.tanh(net.shared(net.x))
    losses = {
        task: 10.0**i * head(z).square().mean() for i, (task, head) in enumerate(zip(TASKS, net.heads, strict=True))
    }
    norms = torch.stack([torch.autograd.grad(loss, z, retain_graph=True)[0].norm() for loss in losses.values()])
    balancer = cp.GradNormalise(TASKS)
    balancer(losses, features=z).backward()
    assert balancer.weights is not None
    torch.testing.assert_close(balancer.weights, 3 / norms / (1 / norms).sum())


def test_scaler_does_not_change_the_weights() -> None:
    plain = step(cp.LRA(TASKS), Net())
    scaled = step(cp.LRA(TASKS), Net(), scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    torch.testing.assert_close(plain, scaled)


def test_ntk_names_missing_residuals() -> None:
    net = Net()
    with pytest.raises(ValueError, match="NTK needs residuals= for 'a', 'b', 'c' in this step, got nothing"):
        cp.NTK(TASKS).backward(net.losses(), shared=net.shared.parameters())


def test_steps_of_bpgs_on_gradients_are_those_of_the_tensor_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, BPGS computes with Python floats; the tensor operations are the reference."""

    def train() -> list[torch.Tensor]:
        weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
        balancer, found = cp.BPGS(3, statistic="gradient", every=2).double(), []
        optimizer = torch.optim.SGD([weight, *balancer.parameters()], lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            losses = [((k + 1) * 10**k * weight).square().sum() if k != 1 or step != 3 else None for k in range(3)]
            found.append(balancer.backward(losses, shared=[weight]))
            assert balancer.weights is not None
            assert balancer.geometry is not None
            found += [balancer.weights, balancer.geometry.s, balancer.theta.detach().clone()]
            optimizer.step()
        return found

    floats = train()
    monkeypatch.setattr("counterpoise.kernels.select_bpgs_kernel", lambda *_: None)
    torch.testing.assert_close(floats, train(), rtol=1e-11, atol=1e-11, equal_nan=True)


def test_ntk_ignores_residuals_where_it_does_not_measure() -> None:
    net = Net()
    parameters = list(net.parameters())
    balancer, optimizer = cp.NTK(TASKS), torch.optim.LBFGS(parameters, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = balancer(net.losses(), shared=parameters, residuals=net.residuals())
        loss.backward()
        return loss

    optimizer.step(balancer.closure(closure))
    weights = balancer.weights
    balancer.eval()
    balancer(net.losses(), shared=parameters, residuals=net.residuals())
    torch.testing.assert_close(balancer.weights, weights, rtol=0, atol=0)
    with pytest.raises(TypeError, match="NTK takes no 'kpis'"):
        balancer(net.losses(), shared=parameters, kpis=[0.5, 0.5])


@pytest.mark.parametrize("form", ["max-weighted-mean", "max-mean", "mean-mean"])
def test_lra_keeps_the_weights_of_a_replica_without_the_reference(form: Any) -> None:
    w = torch.ones(2, 2, requires_grad=True)
    balancer = cp.LRA(["residual", "boundary"], every=1, batch_shape=2, form=form)
    balancer.backward([100 * w.sum(1), w.sum(1)], shared=[w])
    before = balancer.task_weights.clone()
    residual = torch.where(torch.tensor([False, True]), torch.nan, 100 * w.sum(1))
    balancer.backward([residual, w.sum(1)], shared=[w])
    assert torch.equal(balancer.task_weights[1], before[1])
