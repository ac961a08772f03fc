"""The scalars for loggers: losses, weights and learned values by task."""

import pytest
import torch

import counterpoise as cp
from counterpoise.integrations import readings

TASKS = ["a", "b"]


def loss(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True)


def test_losses_and_weights_of_the_last_step() -> None:
    balancer = cp.UWO(TASKS)
    assert readings(balancer) == {}
    balancer({"a": loss(2.0), "b": loss(4.0)})
    found = {name: value.item() for name, value in readings(balancer).items()}
    assert found == {"loss/a": 2.0, "loss/b": 4.0, "weight/a": 0.5, "weight/b": 0.25}


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("bpgs", ["theta", "z_over_tau"]),
        ("kendall", ["log_vars"]),
        ("kendall-l1", ["log_vars"]),
        ("imtl-l", ["log_scales"]),
        ("static", []),
    ],
)
@pytest.mark.parametrize("hybrid", [False, True])
def test_learned_values_are_those_of_the_step(method: str, names: list[str], hybrid: bool) -> None:
    weighting = cp.make(method, TASKS)
    balancer = cp.PCGrad(TASKS, weighting=weighting) if hybrid else weighting  # type: ignore[arg-type]
    weight = torch.ones(2, requires_grad=True)
    balancer.backward((weight * torch.tensor([1.0, 30.0])).square(), shared=[weight])
    found = readings(balancer)
    assert set(found) == {f"{name}/{task}" for name in ["loss", "weight", *names] for task in TASKS}
    for parameter in weighting.parameters():
        logged = torch.stack([found[f"{names[0]}/{task}"] for task in TASKS])
        torch.testing.assert_close(logged, parameter.detach(), check_dtype=False)
        with torch.no_grad():
            parameter.add_(1.0)
        torch.testing.assert_close(logged, parameter.detach() - 1.0, check_dtype=False)


def test_absent_task_has_no_loss_and_no_weight_but_its_learned_value() -> None:
    balancer = cp.BPGS(TASKS)
    balancer({"a": loss(2.0), "b": loss(4.0)})
    balancer({"a": loss(2.0), "b": None})
    absent = {"loss/b", "weight/b"}
    assert set(readings(balancer)) == {"loss/a", "weight/a", "theta/a", "theta/b", "z_over_tau/a", "z_over_tau/b"}
    balancer([None, None])
    assert not {"loss/a", "weight/a", *absent} & set(readings(balancer))


def test_loss_that_is_not_finite_is_shown() -> None:
    balancer = cp.UWO(TASKS)
    balancer(torch.tensor([2.0, torch.nan], requires_grad=True))
    found = readings(balancer)
    assert found["loss/b"].isnan()
    assert found["weight/b"] == 0


def test_method_without_weights_has_losses_only() -> None:
    weight = torch.ones(2, requires_grad=True)
    balancer = cp.GradDrop(TASKS)
    balancer.backward((weight * 3.0).square(), shared=[weight])
    assert set(readings(balancer)) == {"loss/a", "loss/b"}


@pytest.mark.parametrize("method", ["uw-o", "pcgrad"])
def test_fixed_losses_have_no_weight(method: str) -> None:
    w = torch.ones(3, requires_grad=True)
    balancer = cp.make(method, TASKS, fixed={"l2": 0.1, "aux": 0.0})
    tasks = {"loss/a", "loss/b", "weight/a", "weight/b"}
    balancer.backward({"a": 2 * w[0], "l2": 9 * w[1], "b": 4 * w.sum(), "aux": None}, shared=[w])
    found = readings(balancer)
    assert list(found)[:3] == ["loss/a", "loss/b", "loss/l2"]
    assert set(found) == {*tasks, "loss/l2"}
    assert found["loss/l2"].item() == 9.0
    assert not found["loss/l2"].requires_grad
    balancer.backward([w[0], w[1], None, 3 * w[2]], shared=[w])  # fixed losses follow the tasks
    assert readings(balancer)["loss/aux"].item() == 3.0
    assert set(readings(balancer)) == {*tasks, "loss/aux"}


def test_fixed_losses_are_those_of_the_step_and_not_of_its_end() -> None:
    balancer = cp.FAMO(TASKS, fixed={"l2": 0.1})
    balancer({"a": loss(2.0), "b": loss(4.0), "l2": loss(9.0)})
    balancer.step_end({"a": loss(1.0), "b": loss(3.0), "l2": loss(8.0)})
    assert readings(balancer)["loss/l2"].item() == 9.0


def test_evaluation_after_training_and_counts() -> None:
    balancer = cp.UWO(TASKS)
    balancer({"a": loss(2.0)})
    with torch.no_grad():
        balancer([loss(2.0), loss(4.0)])
    assert set(readings(balancer)) == {"loss/a", "loss/b", "weight/a", "weight/b"}
    balancer([loss(2.0), loss(4.0)], counts=torch.tensor([3, 0]))
    found = readings(balancer)
    assert found["loss/a"].item() == 2.0
    assert found["loss/b"].isnan()
    assert found["weight/b"].item() == 0.0
