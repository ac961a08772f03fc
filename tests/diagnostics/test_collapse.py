"""The diagnosis of losses that can be driven to zero, of one-task batches, and of negative losses."""

import functools
import warnings
from typing import Any

import pytest
import torch
from helpers.collapse import PROBLEMS, train
from torch import Tensor

import counterpoise as cp
from counterpoise.diagnostics.evaluation import _falls, _fill_forward, _last_steps_above, weight_statistics

pytestmark = pytest.mark.filterwarnings(
    "ignore::counterpoise.BalanceWarning"
)  # the balancers warn of the same failures
PAIR = ["a", "b"]


@functools.cache
def diagnosis(problem_name: str, method: str, measure_gradients: bool = True, steps: int = 160) -> cp.Diagnosis:
    problem = PROBLEMS[problem_name](seed=0)
    balancer = cp.make(method, problem.tasks)
    with cp.diagnose(balancer, shared=problem.shared if measure_gradients else None) as monitor:
        train(problem, balancer, steps=steps)
    return monitor.diagnosis


def monitor_history(losses: Any, tasks: Any = PAIR, **options: Any) -> cp.Diagnosis:
    with cp.diagnose(tasks, **options) as monitor:
        for row in losses:
            monitor(row)
    return monitor.diagnosis


@pytest.mark.parametrize(("method", "measure_gradients"), [("bpgs", True), ("bpgs", False), ("uw-o", True)])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_collapse_is_named_first(problem: str, method: str, measure_gradients: bool) -> None:
    found = diagnosis(problem, method, measure_gradients)
    task = PROBLEMS[problem](seed=0).collapsing
    assert found.verdict == "collapse"
    assert found.vanishing == (task,)
    assert found.advice[0].startswith(f"Collapse: {task} had more than 99.9% of the weight")
    assert all(remedy in found.advice[0] for remedy in ("cp.Static", "fixed=", "CAGrad", "max_ratio="))
    assert "keep it" not in str(found)
    assert "use BPGS" not in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["static", "kendall", "pcgrad"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_methods_that_do_not_collapse_are_not_accused_and_do_not_warn(problem: str, method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        found = diagnosis(problem, method, steps=240)  # methods that collapse warn after at most 230 steps
    assert found.verdict != "collapse"
    assert found.collapse_steps == 0
    assert "use BPGS" not in str(found)


def test_collapse_to_several_tasks() -> None:
    """Two boundary losses fall together, so that neither has 0.999 of the weight alone."""
    balancer = cp.UWO(["residual", "left", "right"])
    with cp.diagnose(balancer) as monitor:
        for step in range(100):
            small = 10 ** (-step / 10)
            balancer(torch.tensor([5.0, small, 2 * small], requires_grad=True))
    found = monitor.diagnosis
    assert found.verdict == "collapse"
    assert found.vanishing == ("left", "right")
    assert "Collapse: left and right" in found.advice[0]


@pytest.mark.parametrize("other_falls", [False, True])
def test_all_weight_on_one_task_is_no_collapse_if_the_others_fall(other_falls: bool) -> None:
    balancer = cp.UWO(PAIR)
    with cp.diagnose(balancer) as monitor:
        for step in range(100):
            fall = 10 ** (-step / 30)
            balancer(torch.tensor([1e-4 * fall, fall if other_falls else 1.0], requires_grad=True))
    found = monitor.diagnosis
    assert (found.verdict == "scale") is other_falls
    assert ("keep it" in found.advice[0]) is other_falls
    assert found.weights[0] == pytest.approx(1.0, abs=1e-3)


def test_degenerate_weights_without_progress_are_not_kept() -> None:
    """A loss 10⁵ times smaller has all the weight from the start, and nothing falls: no support for the method."""
    balancer = cp.BPGS(PAIR)
    with cp.diagnose(balancer) as monitor:
        for _ in range(50):
            balancer(torch.tensor([1e-5, 1.0], requires_grad=True))
    found = monitor.diagnosis
    assert found.verdict == "scale"
    assert "keep it" not in str(found)
    assert "BPGS gives a 100.00% of the weight, and other losses stand still" in found.advice[0]
    assert "use BPGS" not in str(found)


def test_vanishing_loss_without_a_balancer_never_leads_to_division_by_losses() -> None:
    found = monitor_history([torch.tensor([10 ** (-step / 10), 3.0]) for step in range(60)])
    assert found.vanishing == ("a",)
    assert found.verdict == "scale"
    assert "Do not divide by the losses. Use fixed weights (cp.Static" in found.advice[0]
    assert "use BPGS" not in str(found)
    assert any("would train a alone" in line for line in found.advice)


@pytest.mark.parametrize("method", ["bpgs", "pcgrad"])
def test_negative_losses_are_named(method: str) -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.make(method, ["policy", "value", "entropy"])
    with cp.diagnose(balancer) as monitor:
        for _ in range(8):
            balancer.backward([w[0], 5000 * w[1], -w.sum()], shared=[w])
    found = monitor.diagnosis
    assert found.below_zero == (0.0, 0.0, 1.0)
    line = next(line for line in found.advice if line.startswith("The loss of entropy was negative in 100%"))
    assert "cp.Static" in line
    assert "Do not shift it above zero" in line
    assert "keep it" not in str(found)
    assert "use BPGS" not in str(found)


def test_one_task_batches() -> None:
    def rounds(balancer: cp.Balancer) -> cp.Diagnosis:
        with cp.diagnose(balancer) as monitor:
            for step in range(60):
                task = PAIR[step % 2]
                balancer({task: torch.tensor(300.0 ** (step % 2), requires_grad=True)})
        return monitor.diagnosis

    found = rounds(cp.UWO(PAIR))
    assert found.one_task == 1.0
    assert found.weights == ()  # no step compares two tasks
    assert "compares no losses while every batch has one task: pass memory=True" in found.advice[0]
    assert any(line.startswith("100% of the batches have a single task") for line in found.advice)
    alone = monitor_history([{PAIR[i % 2]: torch.tensor(1000.0 ** (i % 2))} for i in range(20)])
    assert "use BPGS: cp.BPGS(['a', 'b'], memory=True). For" in alone.advice[0]
    remembered = rounds(cp.UWO(PAIR, memory=True))
    assert remembered.memory
    assert remembered.weights[0] == pytest.approx(300 / 301, rel=0.01)
    assert "keep it" in remembered.advice[0]
    assert not any("single task" in line for line in remembered.advice)


def gradients_of_scale(loss_scales: list[float], gradient_scales: list[float]) -> cp.Diagnosis:
    w = torch.ones(2, requires_grad=True)
    rows = [
        [
            scale * w[i] + (loss - scale)
            for i, (loss, scale) in enumerate(zip(loss_scales, gradient_scales, strict=True))
        ]
        for _ in range(5)
    ]
    return monitor_history(rows, shared=[w], every=1)


@pytest.mark.parametrize(
    ("losses", "norms", "verdict", "advice"),
    [
        ([1.0, 1e4], [1.0, 1e4], "scale", "use BPGS"),
        ([1.0, 1e4], [1.0, 1.0], "neither", "Static weights are enough"),
        ([1.0, 1e4], [1e4, 1.0], "scale", "compares gradients instead of losses"),
        ([1.0, 1.0], [1.0, 1e4], "scale", "compares gradients instead of losses"),
        ([1.0, 1e4], [1.0, 1e2], "scale", "compares gradients instead of losses"),
        ([1.0, 1.0], [1.0, 1.0], "neither", "Static weights are enough"),
    ],
)
def test_loss_scale_against_gradient_scale(losses: list[float], norms: list[float], verdict: str, advice: str) -> None:
    found = gradients_of_scale(losses, norms)
    ratios = [norm / loss for norm, loss in zip(norms, losses, strict=True)]
    for measured, values in ((found.norm_spread, norms), (found.norm_spread_over_losses, ratios)):
        assert measured == pytest.approx(torch.tensor(values).log10().diff().abs().item(), abs=1e-4)
    assert found.verdict == verdict
    assert advice in found.advice[0]
    if found.spread > 2 and "use BPGS" not in found.advice[0]:
        assert f"divided by the losses, the gradients would be {found.norm_spread_over_losses:.1f}" in found.advice[0]


def test_conflict_needs_more_than_another_method_that_follows_norms() -> None:
    balancer, w = cp.LRA(PAIR), torch.ones(2, requires_grad=True)
    with cp.diagnose(balancer, shared=[w], every=1) as monitor:
        for _ in range(4):
            balancer.backward([1 + 1e-4 * w.sum(), 3 - w.sum()], shared=[w])
    assert monitor.diagnosis.verdict == "both"
    assert "instead of losses: cp.NashMTL. A penalty" in monitor.diagnosis.advice[0]


def test_fixed_losses_are_not_monitored() -> None:
    balancer = cp.UWO(PAIR, fixed={"l2": 0.1})
    with cp.diagnose(balancer) as monitor:
        for _ in range(3):
            balancer({name: torch.tensor(2.0, requires_grad=True) for name in (*PAIR, "l2")})
    assert monitor.diagnosis.losses == (2.0, 2.0)
    assert monitor.diagnosis.weights == (0.5, 0.5)


def test_failed_step_has_no_weights() -> None:
    balancer = cp.UWO(PAIR, strict=True)
    with cp.diagnose(balancer) as monitor:
        balancer(torch.tensor([1.0, 3.0], requires_grad=True))
        with pytest.raises(ValueError, match="b"):
            balancer(torch.tensor([1.0, torch.nan], requires_grad=True))
        balancer(torch.tensor([1.0, 3.0], requires_grad=True))
    assert monitor.diagnosis.steps == 3
    assert monitor.diagnosis.weights == pytest.approx((0.75, 0.25))


def test_helpers_of_the_evaluation() -> None:
    nan = torch.nan
    filled = _fill_forward(torch.tensor([[nan, 1.0], [2.0, nan], [nan, 3.0]]))
    assert filled.nan_to_num(-1).tolist() == [[-1, 1], [2, 1], [2, 3]]
    shares = torch.tensor([0.0] * 10 + [1.0] * 30 + [0.0] + [1.0] * 9)
    assert _last_steps_above(shares, 0.999) == 43  # 39 of the last 43 are 90.7 %, of the last 44 88.6 %
    assert _last_steps_above(shares[:25], 0.999) == 0  # too few
    fallen, recent = _falls(torch.tensor([100.0] * 4 + [10.0] * 2 + [1.0] * 2, dtype=torch.float64))
    assert (fallen, recent) == (2.0, 1.0)
    absent: Tensor = torch.full((3, 2), nan)
    assert weight_statistics(absent, absent, [], memory=False) == {}
