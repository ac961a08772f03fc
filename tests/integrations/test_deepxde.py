"""DeepXDE with a small equation: comparison with a plain loop, L-BFGS, checkpoints, history and errors."""

from pathlib import Path
from typing import Any

import deepxde as dde
import pytest
import torch
from helpers.comparison import assert_same_state
from torch import Tensor

import counterpoise as cp
from counterpoise.integrations import deepxde as integration
from counterpoise.integrations.deepxde import BalancedModel, BalancerHistory

TASKS = ("residual", "boundary")


def equation(x: Tensor, u: Tensor) -> Tensor:
    second: Tensor = dde.grad.hessian(u, x)
    return second + 40 * torch.sin(6 * x)


@pytest.fixture(scope="module")
def data() -> Any:
    line = dde.geometry.Interval(0, 1)
    ends = dde.icbc.DirichletBC(line, lambda x: 0, lambda x, on_boundary: on_boundary)
    return dde.data.PDE(line, equation, ends, num_domain=12, num_boundary=2, train_distribution="uniform")


@pytest.fixture(autouse=True)
def _few_lbfgs_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"maxiter": 4, "iter_per_step": 4, "ftol": 0}.items():
        monkeypatch.setitem(dde.optimizers.config.LBFGS_options, name, value)


def make_network(**options: Any) -> Any:
    torch.manual_seed(0)
    return dde.nn.FNN([1, 8, 8, 1], "tanh", "Glorot normal", **options)


def make_balancer(method: str) -> cp.Balancer:
    if method == "hybrid":
        return cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS))
    return cp.make(method, TASKS)


def train(model: Any, optimizer: Any = "adam", iterations: int | None = 6, **options: Any) -> Any:
    model.compile(optimizer, lr=None if optimizer == "L-BFGS" else 1e-2, verbose=0, **options)
    model.train(iterations=iterations, display_every=100, verbose=0)
    return model


@pytest.mark.parametrize("method", ["bpgs", "lra", "upgrad", "hybrid"])
def test_same_training_as_a_plain_loop(method: str, data: Any) -> None:
    model = train(BalancedModel(data, make_network(), make_balancer(method)))
    plain, balancer = dde.Model(data, make_network()), make_balancer(method)
    plain.compile("adam", lr=1e-2, verbose=0)
    optimizer = torch.optim.Adam([{"params": plain.net.parameters()}, *balancer.param_groups()], lr=1e-2)
    for _ in range(6):
        optimizer.zero_grad()
        balancer.backward(plain.outputs_losses_train(data.train_x, None, None)[1], shared=plain.net.parameters())
        optimizer.step()
    assert_same_state(model.net, plain.net, 1e-6)
    assert_same_state(model.balancer, balancer, 1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "L-BFGS"])
def test_static_weights_train_like_loss_weights(optimizer: str, data: Any) -> None:
    weights = [1.0, 50.0]
    model = train(BalancedModel(data, make_network(), cp.Static(TASKS, weights)), optimizer)
    plain = train(dde.Model(data, make_network()), optimizer, loss_weights=weights)
    assert_same_state(model.net, plain.net, 1e-6)


@pytest.mark.parametrize("method", ["bpgs", "lra", "pcgrad"])
def test_lbfgs_minimises_the_sum_with_the_last_weights(method: str, data: Any) -> None:
    model = train(BalancedModel(data, make_network(), make_balancer(method)))
    plain = dde.Model(data, make_network())
    plain.net.load_state_dict(model.net.state_dict())
    assert model.balancer.weights is not None
    train(model, "L-BFGS", None)
    train(plain, "L-BFGS", None, loss_weights=model.balancer.weights.tolist())
    assert_same_state(model.net, plain.net, 1e-5)


@pytest.mark.parametrize("method", ["bpgs", "lra"])
def test_resuming_is_exact(method: str, data: Any, tmp_path: Path) -> None:
    whole = train(BalancedModel(data, make_network(), make_balancer(method)), iterations=4)
    path = whole.save(str(tmp_path / "model"))
    whole.train(iterations=4, verbose=0)
    rest = BalancedModel(data, make_network(), make_balancer(method))
    rest.compile("adam", lr=1e-2, verbose=0)
    rest.restore(path)
    rest.train(iterations=4, verbose=0)
    assert_same_state(rest.net, whole.net, 0.0)
    assert_same_state(rest.balancer, whole.balancer, 0.0)


def test_lbfgs_continues_from_a_checkpoint(data: Any, tmp_path: Path) -> None:
    first = train(BalancedModel(data, make_network(), cp.LRA(TASKS)))
    path = first.save(str(tmp_path / "model"))
    second = BalancedModel(data, make_network(), cp.LRA(TASKS))
    second.compile("adam", lr=1e-2, verbose=0)
    second.restore(path)
    for model in (first, second):
        train(model, "L-BFGS", None)
    assert_same_state(first.net, second.net, 0.0)


def test_lbfgs_uses_the_weights_of_a_checkpoint_that_is_restored_after_further_training(
    data: Any, tmp_path: Path
) -> None:
    model = train(BalancedModel(data, make_network(), cp.LRA(TASKS)))
    assert model.balancer.weights is not None
    saved, path = model.balancer.weights.clone(), model.save(str(tmp_path / "model"))
    train(model, iterations=40)
    assert not torch.equal(model.balancer.weights, saved)
    model.restore(path)
    train(model, "L-BFGS", None)
    torch.testing.assert_close(model._with_fixed_weights().weights, saved)


def test_history_has_the_losses_and_weights_of_both_stages(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = BalancedModel(data, make_network(), cp.BPGS(TASKS))
    history = BalancerHistory(period=4, verbose=1)
    for optimizer, iterations in (("adam", 10), ("L-BFGS", None)):
        model.compile(optimizer, lr=1e-2, verbose=0)
        model.train(iterations=iterations, callbacks=[history], verbose=0)
    assert [row["step"] for row in history.rows] == [4, 8, 10, 14]
    names = {f"{name}/{task}" for name in ("loss", "weight", "theta") for task in TASKS}
    assert all(names <= set(row) for row in history.rows)
    assert history.rows[2]["weight/residual"] == history.rows[3]["weight/residual"]
    assert history.rows[2]["loss/residual"] != history.rows[3]["loss/residual"]
    assert capsys.readouterr().out.count("weight/boundary") == 4


def test_unknown_coefficient_and_penalty_are_trained(data: Any) -> None:
    factor = dde.Variable(1.0)
    inverse = dde.data.PDE(data.geom, lambda x, u: equation(x, u) * factor, data.bcs, 12, 2)
    balancer = cp.BPGS(TASKS, fixed={"l1": 1.0})
    model = BalancedModel(inverse, make_network(regularization=["l1", 1e-3]), balancer)
    start = balancer.theta.detach().clone()
    train(model, external_trainable_variables=factor)
    assert factor.item() != 1.0
    assert not torch.equal(balancer.theta, start)
    assert model.balancer.weights is not None
    assert model.balancer.weights.shape == (2,)


def test_decay_of_the_learning_rate_applies_to_both_groups(data: Any) -> None:
    model = train(BalancedModel(data, make_network(), cp.BPGS(TASKS)), decay=("step", 3, 0.1))
    assert [group["lr"] for group in model.opt.param_groups] == pytest.approx([1e-4, 1e-4])


def test_own_optimiser_without_balancer_parameters_warns(data: Any) -> None:
    model = BalancedModel(data, make_network(), cp.BPGS(TASKS))
    with pytest.warns(cp.BalanceWarning, match=r"param_groups\(\) to the optimiser that you pass to compile"):
        model.compile(torch.optim.Adam(model.net.parameters()), verbose=0)


def test_errors_say_what_to_do(data: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = BalancedModel(data, make_network(), cp.LRA(TASKS))
    with pytest.raises(RuntimeError, match=r"not compiled: call model\.compile"):
        model.train(iterations=1)
    with pytest.raises(ValueError, match=r"loss_weights are .*importance="):
        model.compile("adam", lr=1e-3, loss_weights=[1, 100])
    with pytest.raises(ValueError, match="NNCG"):
        model.compile("NNCG")
    with pytest.raises(RuntimeError, match="LRA has no weights to freeze: run a training step first"):
        train(model, "L-BFGS", None)
    with pytest.raises(ValueError, match="computed 2 losses, but the balancer has 3"):
        train(BalancedModel(data, make_network(), cp.LRA([*TASKS, "initial"])))
    with pytest.raises(ValueError, match="NTK needs 'residuals', which DeepXDE does not provide"):
        BalancedModel(data, make_network(), cp.NTK(TASKS))
    plain = train(dde.Model(data, make_network()), iterations=1)
    with pytest.raises(KeyError, match="not written by a BalancedModel"):
        model.restore(plain.save(str(tmp_path / "plain")))
    monkeypatch.setattr(integration, "backend_name", "jax")
    with pytest.raises(RuntimeError, match=r"'jax'.*DDE_BACKEND=pytorch"):
        BalancedModel(data, make_network(), cp.LRA(TASKS))
