"""Stacks of physics-informed networks: gradients, independence of runs, resuming, reporting."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import counterpoise as cp
from counterpoise.functional import uniform
from counterpoise.lab.engine import Recipe, Run, Schedule, Store, execute, make_run_batches, recipe, spec
from counterpoise.lab.engine.aligned_jacobi import AlignedJacobi
from counterpoise.lab.engine.balancer_groups import BalancerGroups
from counterpoise.lab.engine.methods import make
from counterpoise.lab.engine.pinn import PinnTrainer, decode_field
from counterpoise.lab.engine.pinn_workload import PinnWorkload
from counterpoise.lab.engine.task_losses import balanced_gradient, linear_losses
from counterpoise.lab.models.pinn import StackedPINN, _padded
from counterpoise.lab.studies.pinn import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
SCHEDULE = Schedule(epochs=2, batch_size=12, decay="exponential", shared="all")
MIXED = ("Sum ×100", "BPGS", "LRA", "NTK", "FAMO", "PCGrad", "DCGD + LRA", "Nash-MTL", "GradNorm")


def make_run(method: Recipe, seed: int, problem: str = "klein-gordon", form: str = "three", **options: Any) -> Run:
    points = {"interior": 12, "boundary": 4, "steps": 3} | options
    return Run("pinn", spec(problem, form=form, **points), spec("pinn", width=6, depth=2), method, seed, SCHEDULE)


def train(runs: list[Run], epochs: int = 2) -> PinnTrainer:
    trainer = PinnTrainer(runs)
    for _ in range(epochs):
        trainer.train_epoch()
    return trainer


@pytest.mark.parametrize("form", ["two", "three"])
def test_task_gradients_of_one_pass_equal_those_of_separate_passes(form: str) -> None:
    workload = PinnWorkload([make_run(recipe("static"), seed, form=form) for seed in (0, 1)])
    points = workload.draw()
    losses, gradients = workload.task_gradients(points)
    separate = workload.losses(points)
    torch.testing.assert_close(losses, separate.detach())
    for task in range(len(workload.tasks)):
        grads = torch.autograd.grad(separate[:, task].sum(), workload.network.layers(), retain_graph=True)
        torch.testing.assert_close(gradients[:, task], torch.cat([grad.flatten(1) for grad in grads], 1))


def test_points_are_the_draws_of_the_step_placed_on_the_domain() -> None:
    workload = PinnWorkload([make_run(recipe("static"), seed) for seed in (0, 1)])
    workload.draw()
    draws = iter(uniform(workload.seeds, torch.ones(2, dtype=torch.long), workload.placement.draws).float().unbind(1))
    for found, x in zip(workload.passes, workload.draw(), strict=True):
        placed = []
        for term in found.terms:
            count = workload.points[term.drawn == 2]
            own = torch.stack([next(draws) for _ in range(count * term.drawn)], 1).unflatten(1, (count, term.drawn))
            placed.append(workload.equation.place(term, own))
        torch.testing.assert_close(x, torch.cat(placed, 1), rtol=0, atol=0)


def test_padded_units_change_neither_losses_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = PinnWorkload([make_run(recipe("static"), 0)])
    points = workload.draw()
    expected = workload.task_gradients(points)
    monkeypatch.setattr(StackedPINN, "aligned_layers", lambda network: _padded(network.layers()))
    torch.testing.assert_close(workload.task_gradients(points), expected)


def test_the_loss_is_the_mean_square_of_the_residuals() -> None:
    workload = PinnWorkload([make_run(recipe("static"), 0, form="two")])
    points = workload.draw()
    value = torch.cat([layer.detach().flatten(1) for layer in workload.network.layers()], 1)
    residuals = workload.residuals(points, value, slice(None))
    means = torch.stack([residuals[task].square().mean(1) for task in workload.tasks], 1)
    torch.testing.assert_close(means, workload.losses(points).detach())


@pytest.mark.parametrize("name", ["BPGS (gradient)", "LRA", "Kendall", "FAMO", "PCGrad", "DCGD + LRA", "GradNorm"])
def test_balancers_on_known_gradients_equal_those_on_a_network(name: str) -> None:
    runs = [make_run(METHODS[name], seed) for seed in (0, 1)]
    workload = PinnWorkload(runs)
    points = workload.draw()
    losses, gradients = workload.task_gradients(points)
    value = torch.cat([layer.detach().flatten(1) for layer in workload.network.layers()], 1)
    known, usual = (BalancerGroups(runs, workload.tasks, "cpu", "loop") for _ in range(2))
    direction = balanced_gradient(known, value, losses, gradients, lambda parameter, rows: {})
    usual.backward(workload.losses(points), list(workload.network.parameters()))
    expected = torch.cat(
        [layer.grad.flatten(1) for layer in workload.network.parameters() if layer.grad is not None], 1
    )
    torch.testing.assert_close(direction, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(known.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_linear_losses_have_the_given_gradients() -> None:
    parameter, gradients = torch.zeros(2, 4, requires_grad=True), torch.rand(2, 3, 4)
    losses = linear_losses(parameter, torch.rand(2, 3), gradients)
    cp.Static(3, batch_shape=2).backward(losses, shared=[parameter])
    torch.testing.assert_close(parameter.grad, gradients.sum(1))


@pytest.mark.parametrize("tasks", [2, 3, 9])
def test_aligned_mtl_by_jacobi_rotations_equals_that_of_the_library(tasks: int) -> None:
    jacobian = (
        torch.randn(5, tasks, 20, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, 2, tasks)[:, None]
    )
    weights = []
    for build in (cp.AlignedMTL, AlignedJacobi):
        parameter = torch.zeros(5, 20, requires_grad=True)
        balancer = build(tasks, batch_shape=5)
        balancer.backward(linear_losses(parameter, torch.ones(5, tasks), jacobian), shared=[parameter])
        weights.append(balancer.weights)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)


def test_a_run_does_not_depend_on_the_others_of_its_stack() -> None:
    runs = [make_run(METHODS[name], seed) for name in MIXED for seed in (3, 4)]
    stack = train(runs)
    for index in range(1, len(runs), 4):
        alone = train([runs[index]])
        torch.testing.assert_close(alone.network.value[0], stack.network.value[index], rtol=1e-3, atol=1e-5)


def test_runs_resume_from_a_checkpoint(tmp_path: Path) -> None:
    runs = [make_run(METHODS[name], 5, problem="burgers") for name in MIXED]
    whole, first = train(runs), train(runs, epochs=1)
    store = Store(tmp_path)
    store.save_checkpoint("pinn", "key", first.state_dict())
    resumed = PinnTrainer(runs)
    state = store.load_checkpoint("pinn", "key")
    assert state is not None
    resumed.load_state_dict(state)
    resumed.train_epoch()
    torch.testing.assert_close(resumed.network.value, whole.network.value, rtol=0, atol=0)
    assert str(resumed.history) == str(whole.history)  # NaN is not equal to itself


def test_the_rate_decays_after_every_epoch_and_the_best_network_is_kept() -> None:
    trainer = train([make_run(recipe("static"), 0, problem="helmholtz", form="two")])
    assert trainer.rate_factor.item() == pytest.approx(0.9)
    assert float(trainer.best_loss) <= min(sum(row["loss"]) for row in trainer.history[0])
    (result,) = trainer.results()
    assert result["macro"] == pytest.approx(1 - result["metrics"]["rel_l2"])
    assert 1 <= result["best"]["epoch"] <= 2


def test_methods_of_different_spaces_are_trained_in_different_batches(tmp_path: Path) -> None:
    runs = [make_run(METHODS[name], 0) for name in ("Sum", "LRA", "DCGD")]
    batches = make_run_batches([replace(run, device="cuda") for run in runs])
    assert [len(batch.runs) for batch in batches] == [1, 1, 1]
    (batch,) = make_run_batches(runs[:1])
    execute(batch, tmp_path)
    result = Store(tmp_path).result(runs[0])
    assert result is not None
    assert decode_field(result["field"]).shape == (40, 40)


def test_every_method_takes_a_step_on_every_equation() -> None:
    problems = {"helmholtz": "five", "burgers": "three", "klein-gordon": "two", "kirchhoff": "nine"}
    for problem, form in problems.items():
        runs = [make_run(method, 0, problem=problem, form=form) for method in METHODS.values()]
        trainer = PinnTrainer(runs)
        trainer.advance()
        assert trainer.network.value.isfinite().all()


@pytest.mark.parametrize(("method", "found"), [("scaled-sum", "weight"), ("scaled-nash", "importance")])
def test_all_conditions_of_a_scaled_method_have_its_factor(method: str, found: str) -> None:
    balancer = make(method, ("residual", "boundary", "initial"), factor=3.0)
    assert getattr(balancer, found).tolist() == [1.0, 3.0, 3.0]
