"""The recipes of examples/ have the effects that their text states."""

import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.paths import ROOT

import counterpoise as cp

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def import_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks are faster on one thread, and the results do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(name: str) -> Any:
    module: ModuleType = importlib.import_module(name)
    return module


@pytest.mark.parametrize("build", [cp.Static, cp.PCGrad, partial(cp.BPGS, statistic="gradient")])
def test_pinn_is_solved_by_adam_and_lbfgs(build: Callable[..., cp.Balancer]) -> None:
    pinn = load("pinn")
    assert pinn.train(build(pinn.TASKS), steps=160) < 0.1


def test_pinn_collapses_with_bpgs_and_a_warning_says_so() -> None:
    pinn = load("pinn")
    with pytest.warns(cp.BalanceWarning, match="'boundary'.*cp.Static"):
        assert pinn.train(cp.BPGS(pinn.TASKS), steps=200) > 0.9


def test_plain_sum_keeps_the_initial_condition_of_an_equation_that_a_constant_solves() -> None:
    advection = load("advection")
    assert advection.train(cp.Static(advection.TASKS), steps=600, seed=1) < 0.5
    balancer = cp.BPGS(advection.TASKS, statistic="gradient")
    with pytest.warns(cp.BalanceWarning, match="tasks 'residual' and 'boundary'"):
        assert advection.train(balancer, steps=900, seed=1) > 0.95


def test_vae_with_a_fixed_kl_term_uses_its_code() -> None:
    train = load("vae").train
    error, kl = train(cp.BPGS(["image", "number"], fixed={"kl": 0.01}), steps=150)
    assert error < 0.3
    assert kl > 1
    error, kl = train(cp.BPGS(["image", "number", "kl"]), steps=150)
    assert error > 0.9
    assert kl < 0.01


def test_policy_is_trained_with_fixed_factors_but_not_with_a_shifted_entropy() -> None:
    train = load("entropy_bonus").train
    tasks, entropy = ["policy", "value"], {"entropy": 0.01}
    assert train(cp.Static(tasks, weights=[1.0, 0.5], fixed=entropy), steps=100) > 0.7
    assert train(cp.PCGrad(tasks, fixed=entropy), steps=100) > 0.7
    assert train(cp.BPGS([*tasks, "entropy"]), steps=100, shift=math.log(4)) < 0.3


def test_negative_entropy_gives_a_warning_against_shifting() -> None:
    with pytest.warns(cp.BalanceWarning, match="Do not shift it above zero"):
        load("entropy_bonus").train(cp.BPGS(["policy", "value", "entropy"]), steps=1)


def test_missing_labels_have_no_effect_on_values_and_gradients() -> None:
    masked_losses = load("missing_labels").masked_losses
    outputs = torch.randn(6, 3, requires_grad=True)
    labels = torch.randn(6, 3)
    labels[0, 0] = labels[3:, 1] = torch.nan
    labels[:, 2] = torch.nan
    losses, counts = masked_losses(outputs, labels)
    assert counts.tolist() == [5, 3, 0]
    errors = (outputs - labels).detach().square()
    torch.testing.assert_close(losses[:2].detach(), torch.stack([errors[1:, 0].mean(), errors[:3, 1].mean()]))
    balancer = cp.Static(3)
    balancer(losses, counts=counts).backward()
    assert balancer.weights is not None
    assert balancer.weights.tolist() == [1, 1, 0]
    assert outputs.grad is not None
    assert torch.equal(outputs.grad != 0, ~labels.isnan())


def test_network_learns_from_partly_missing_labels() -> None:
    error, _ = load("missing_labels").train(steps=200)
    assert error < 0.7


def test_round_robin_is_balanced_with_memory_only() -> None:
    round_robin = load("round_robin")
    steps = 100
    alone, remembered = (
        torch.stack(round_robin.train(cp.BPGS(round_robin.TASKS, memory=memory), steps)[-2:]).amax(0)
        for memory in (False, True)
    )
    assert alone.tolist() == [1, 1]
    assert remembered[0] > 0.99
    assert 0 < remembered[1] < 0.01


def detector_batch(objects: int) -> tuple[torch.Tensor, ...]:
    images = torch.randn(8, 16)
    boxes = 100 * images[:, :4]
    boxes[objects:] = torch.nan
    return images, images[:, :3].argmax(1), boxes


def test_library_of_the_detector_sees_only_the_detector() -> None:
    detector = load("detector")
    torch.manual_seed(0)
    balancer = cp.BPGS(["class", "box"])
    trainer = detector.Trainer(detector.BalancedLosses(detector.Detector(), balancer))
    trainer.optimizer.add_param_group(balancer.param_groups()[0])
    start = balancer.theta.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        trainer.fit([detector_batch(8) for _ in range(20)])
    assert not torch.equal(balancer.theta, start), "θ is not trained"
    for module in (trainer.model, trainer.ema):
        assert not any("theta" in name for name in module.state_dict())
    assert trainer.optimizer.param_groups[-1]["weight_decay"] == 0


def test_batch_without_objects_trains_the_classes_alone() -> None:
    detector = load("detector")
    balancer = cp.BPGS(["class", "box"])
    model = detector.BalancedLosses(detector.Detector(), balancer)
    model(*detector_batch(8))
    model(*detector_batch(0))["balanced"].backward()
    assert balancer.weights is not None
    assert balancer.weights.tolist() == [1, 0]
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", ["bpgs", "pcgrad", "upgrad", "nash-mtl"])
def test_importance_lowers_the_error_of_the_preferred_task(name: str) -> None:
    train = load("preferences").train
    equal, preferred = (train(name, importance, steps=50) for importance in (None, {"experts": 3.0}))
    assert preferred["experts"] < 0.95 * equal["experts"]
    assert preferred["users"] > equal["users"]


def test_fixed_losses_are_added_with_their_factors(capsys: pytest.CaptureFixture[str]) -> None:
    load("fixed_losses").main(steps=5)
    assert "balanced: ('shape', 'mass')" in capsys.readouterr().out
    balancer = cp.BPGS(["a", "b"], fixed={"c": 0.1, "d": -2.0})
    losses = torch.tensor([1.0, 4.0, 5.0, 7.0], requires_grad=True)
    loss = balancer(losses)
    loss.backward()
    assert losses.grad is not None
    assert balancer.weights is not None
    torch.testing.assert_close(losses.grad, torch.cat([balancer.weights, torch.tensor([0.1, -2.0])]))
    torch.testing.assert_close(loss, losses.grad @ losses)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_listed_in_the_documentation(path: Path) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    listed = path.stem == "problem" or any(f"examples/{path.name}" in page.read_text() for page in pages)
    assert listed, path.name
