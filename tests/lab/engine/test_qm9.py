"""Stacks of message passing networks: gradients, batches, independence of runs, evaluation, resuming."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoise.lab.data.qm9 import SINGLE_TASK_MAE, TARGETS
from counterpoise.lab.engine import Recipe, Run, Schedule, Store, execute, make_run_batches, recipe, spec
from counterpoise.lab.engine.qm9 import QM9Trainer
from counterpoise.lab.engine.qm9_batches import separate
from counterpoise.lab.engine.qm9_workload import QM9Workload, TrainingBatch, relative_change
from counterpoise.lab.studies.qm9 import GRADIENT_SPACE, METHODS

pytestmark = pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
SCHEDULE = Schedule(epochs=2, batch_size=12, decay="plateau", lr_end=1e-5)
HALF = replace(SCHEDULE, precision="fp16")
MODEL = spec("mpnn", width=4, edge_width=4)


def make_run(method: Recipe, seed: int, **options: Any) -> Run:
    return Run("qm9", spec("synthetic-molecules", molecules=50, **options), MODEL, method, seed, SCHEDULE)


def started(runs: list[Run]) -> QM9Trainer:
    trainer = QM9Trainer(runs)
    trainer.start_epoch()
    return trainer


def next_batch(trainer: QM9Trainer) -> TrainingBatch:
    return trainer.workload.next_batch(trainer.workload.order, pairs=trainer.variants()[0])


@pytest.mark.parametrize("compared", ["features", "parameters"])
@pytest.mark.parametrize("name", ["BPGS", "Kendall", "Gradient normalisation", "PCGrad"])
def test_the_direction_equals_that_of_the_balancer_on_the_network(name: str, compared: str) -> None:
    runs = [make_run(METHODS[name], seed, compared=compared) for seed in (0, 1)]
    trainer, usual = started(runs), started(runs).balancers.members()[0]
    batch = next_batch(trainer)
    losses, direction = trainer._direction(batch)
    network = trainer.workload.network
    features = network.features(batch.molecules)
    place = {"features": features} if compared == "features" else {"shared": network.shared_layers()}
    out = network.heads(features)
    usual.backward((batch.weight * (out - batch.targets).square()).sum(1), **place)
    expected = torch.cat([layer.grad.flatten(1) for layer in network.layers() if layer.grad is not None], 1)
    torch.testing.assert_close(direction, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses, trainer.workload.losses(batch).detach())


def test_half_precision_is_close_for_losses_of_any_scale() -> None:
    recipes = [recipe("static", weights=(weight,) * len(TARGETS)) for weight in (1e-6, 1e6)]
    runs = [make_run(method, 0) for method in [*recipes, METHODS["SI"]]]
    trainers = [started(runs), started([replace(run, schedule=HALF) for run in runs])]
    expected, found = (trainer._direction(next_batch(trainer))[1] for trainer in trainers)
    error = torch.linalg.vector_norm(found - expected, dim=1) / torch.linalg.vector_norm(expected, dim=1)
    assert (error < 5e-3).all()


def test_an_epoch_contains_every_training_molecule_once() -> None:
    workload = QM9Workload([make_run(METHODS["Sum"], seed) for seed in (0, 1)])
    assert (workload.train.shape[1], workload.steps) == (40, 4)
    orders = []
    for epoch in range(2):
        workload.start_epoch(epoch)
        rows, weight = workload.order.rows.flatten(1), workload.order.weight.flatten(1)
        orders.append(rows[weight > 0].view(2, 40))
    first, second = orders
    expected = workload.train.sort().values
    assert torch.equal(first.sort().values, expected)
    assert torch.equal(second.sort().values, expected)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_the_last_batch_of_an_epoch_counts_only_its_own_molecules() -> None:
    trainer = started([make_run(METHODS["Sum"], 0)])
    workload = trainer.workload
    for _ in range(4):
        batch = workload.next_batch(workload.order, pairs=False)
    rows = workload.order.rows[0, -1][workload.order.weight[0, -1] > 0]
    assert len(rows) == 4
    y = (workload.targets[rows] - workload.centre[0]) / workload.spread[0]
    out = workload.network(separate(workload.inputs, rows[None]))[0]
    torch.testing.assert_close(workload.losses(batch)[0], (out - y).square().mean(0).float())


def test_targets_are_standardised_by_the_training_molecules() -> None:
    workload = QM9Workload([make_run(METHODS["Sum"], 3)])
    y = (workload.targets[workload.train[0]] - workload.centre[0]) / workload.spread[0]
    torch.testing.assert_close(y.mean(0), torch.zeros(11).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.std(0), torch.ones(11).double())
    raw = QM9Workload([make_run(METHODS["Sum"], 3, targets="raw")])
    assert raw.spread.flatten().tolist() == [1, 1, 1000, 1000, 1, *[1000] * 5, 1]


def test_errors_are_means_over_the_held_out_molecules_in_their_units() -> None:
    trainer = QM9Trainer([make_run(METHODS["Sum"], seed) for seed in (0, 1)])
    workload = trainer.workload
    found = trainer.evaluate(workload.test)
    out = workload.network(separate(workload.inputs, workload.test)) * workload.spread + workload.centre
    expected = (out - workload.targets[workload.test]).abs().mean(1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=0)


def test_the_change_is_zero_for_the_errors_of_single_task_models() -> None:
    single = torch.tensor(SINGLE_TASK_MAE, dtype=torch.float64)
    assert relative_change(single).item() == pytest.approx(0, abs=1e-12)
    assert relative_change(2 * single).item() == pytest.approx(100)


def test_every_method_takes_a_step_alone_as_in_a_stack() -> None:
    runs = [make_run(method, seed) for method in METHODS.values() for seed in (3, 4)]
    stack = started(runs)
    stack.advance()
    assert stack.network.value.isfinite().all()
    for index in range(1, len(runs), 6):
        alone = started([runs[index]])
        alone.advance()
        torch.testing.assert_close(alone.network.value[0], stack.network.value[index], rtol=1e-4, atol=1e-6)


def test_gradients_are_compared_on_the_shared_parameters_if_asked() -> None:
    trainer = started([make_run(method, 0, compared="parameters") for method in GRADIENT_SPACE.values()])
    trainer.advance()
    assert trainer.network.value.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_steps_equal_those_of_a_cpu() -> None:
    values = []
    for device in ("cpu", "cuda"):
        trainer = started([replace(make_run(METHODS[name], 0), device=device) for name in ("Sum", "FAMO", "Kendall")])
        for _ in range(12):
            trainer.advance()
        values.append(trainer.network.value.cpu())
    torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-4)


def test_runs_resume_from_a_checkpoint(tmp_path: Path) -> None:
    runs = [make_run(METHODS[name], 5) for name in ("FAMO", "BPGS", "Gradient normalisation", "PCGrad")]
    whole = QM9Trainer(runs)
    whole.train_epoch()
    store = Store(tmp_path)
    store.save_checkpoint("qm9", "key", whole.state_dict())
    whole.train_epoch()
    resumed = QM9Trainer(runs)
    state = store.load_checkpoint("qm9", "key")
    assert state is not None
    resumed.load_state_dict(state)
    resumed.train_epoch()
    torch.testing.assert_close(resumed.network.value, whole.network.value, rtol=0, atol=0)
    assert str(resumed.history) == str(whole.history)  # NaN is not equal to itself
    assert str(resumed.results()) == str(whole.results())


def test_results_are_those_of_the_test_molecules_at_the_best_epoch(tmp_path: Path) -> None:
    run = make_run(METHODS["BPGS"], 0)
    (batch,) = make_run_batches([run])
    seen: list[tuple[float, list[float]]] = []
    execute(
        batch,
        tmp_path,
        after_epoch=lambda t: seen.append(
            (float(t.best[0]), t.evaluate(t.workload.test)[0].tolist() if t.best_epoch[0] == t.epoch else [])
        ),
    )
    result = Store(tmp_path).result(run)
    assert result is not None
    best = result["best"]["epoch"]
    errors = seen[best - 1][1]
    assert [result["metrics"][f"mae_{target}"] for target in TARGETS] == pytest.approx(errors, rel=1e-5)
    assert result["metrics"]["mae_change_validation"] == pytest.approx(min(value for value, _ in seen), rel=1e-5)
    assert result["macro"] == pytest.approx(-result["metrics"]["mae_change"] / 100, rel=1e-5)


def test_a_run_that_has_stopped_does_not_change() -> None:
    schedule = replace(SCHEDULE, patience=1, epochs=3)
    trainer = QM9Trainer([replace(make_run(METHODS["Sum"], seed), schedule=schedule) for seed in (0, 1)])
    trainer.train_epoch()
    trainer.stopped[0] = True
    before = trainer.network.value.clone()
    trainer.train_epoch()
    assert torch.equal(trainer.network.value[0], before[0])
    assert not torch.equal(trainer.network.value[1], before[1])
    assert [len(rows) for rows in trainer.history] == [1, 2]


def test_methods_are_stacked_by_space_on_a_gpu() -> None:
    runs = [replace(make_run(METHODS[name], 0), device="cuda") for name in ("Sum", "FAMO", "PCGrad", "CAGrad")]
    assert sorted(len(batch.runs) for batch in make_run_batches(runs)) == [2, 2]
