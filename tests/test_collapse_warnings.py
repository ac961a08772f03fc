"""Warnings about training that collapses to one or two tasks, or spends its steps on a loss that is 0."""

import random
import warnings
from collections.abc import Callable

import pytest
import torch
from helpers.balance_warnings import caught, repeat
from helpers.collapse import PROBLEMS, train
from torch import Tensor

import counterpoise as cp


def collapsing(step: int) -> Tensor:
    """Return losses of which the first falls to zero and the second stays."""
    return torch.tensor([0.9**step, 1.0])


def test_collapse_warns_once_and_names_the_task() -> None:
    balancer = cp.UWO(["kl", "reconstruction"])
    (message,) = caught(repeat(balancer, collapsing, 400))
    assert "UWO has given task 'kl' more than 99.9% of the weight" in message
    assert "fixed=, or cp.Static" in message
    assert "max_ratio=" in message
    (message,) = caught(repeat(cp.UWO(["kl", "rest"], batch_shape=3), lambda k: collapsing(k).expand(3, 2), 400))
    assert "'kl'" in message
    assert caught(repeat(cp.UWO(2, max_ratio=100.0), collapsing, 400)) == []
    w = torch.ones(2, requires_grad=True)
    hybrid = cp.PCGrad(["kl", "rest"], weighting=cp.UWO(2))
    (message,) = caught(lambda: [hybrid.backward(collapsing(k) * w, shared=[w]) for k in range(400)])
    assert "UWO has given task 'kl'" in message


def test_a_task_that_is_switched_off_on_purpose_is_no_collapse() -> None:
    off = {"rest": 0.0}
    for balancer in (
        cp.Static(["kl", "rest"], weights={"kl": 1.0, "rest": 0.0}),
        cp.UWO(["kl", "rest"], importance=off),
    ):
        assert caught(repeat(balancer, collapsing, 400)) == []
        with cp.diagnose(balancer) as monitor:
            repeat(balancer, collapsing, 100)()
        assert monitor.diagnosis.verdict != "collapse"


@pytest.mark.parametrize("name", ["bpgs", "famo", "ema-uw-o"])
def test_weights_that_jump_when_a_task_is_absent_warn_once(name: str) -> None:
    usual, without = {"a": 1000.0, "b": 800.0, "c": 0.7}, {"a": 1000.0, "b": 800.0}

    def messages(name: str, rare: dict[str, float], **options: bool) -> list[str]:
        balancer = cp.make(name, ["a", "b", "c"], **options)

        def run() -> None:
            for step in range(300):
                losses = {task: torch.tensor(loss) for task, loss in (rare if step % 4 == 3 else usual).items()}
                balancer(losses)
                balancer.step_end({task: 0.99 * loss for task, loss in losses.items()})

        return caught(run)

    (message,) = messages(name, without)
    assert "without 'c', " in message
    assert "times its usual weight" in message
    assert "pass memory=True" in message
    assert messages(name, without, memory=True) == []
    assert messages("uw-o", without) == []
    assert messages(name, {"b": 800.0, "c": 0.7}) == [], "the weights of the others hardly change without a large loss"


@pytest.mark.parametrize("draw", ["in turn", "at random"])
def test_collapse_of_a_loop_with_one_task_per_batch_warns(draw: str) -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.randint(2, (400,), generator=generator) if draw == "at random" else torch.arange(400) % 2

    def losses(rest_falls: bool) -> Callable[[int], dict[str, Tensor]]:
        def at(step: int) -> dict[str, Tensor]:
            small = torch.tensor(0.9**step)
            return {"memorised": small} if order[step] else {"rest": small if rest_falls else torch.ones(())}

        return at

    balancer = cp.UWO(["memorised", "rest"], memory=True)
    (message,) = caught(repeat(balancer, losses(False), 400))
    assert "UWO has given task 'memorised' more than 99.9% of the weight" in message
    assert caught(repeat(cp.UWO(["memorised", "rest"], memory=True), losses(True), 300)) == []


@pytest.mark.parametrize("counted", [False, True])
def test_collapse_to_a_task_of_another_rank_warns(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    balancer, step = cp.UWO(["here", "elsewhere"]), iter(range(400))
    mean_over_ranks = lambda *_: (torch.tensor([1.0, 0.9 ** next(step)]), torch.tensor([2.0, 0.0]))  # noqa: E731
    monkeypatch.setattr(balancer, "_mean_over_ranks", mean_over_ranks)
    losses, options = (torch.ones(2), {"counts": torch.tensor([4, 0])}) if counted else ([torch.ones(()), None], {})
    (message,) = caught(repeat(balancer, losses, 220, **options))
    assert "UWO has given task 'elsewhere' more than 99.9% of the weight" in message


@pytest.mark.parametrize("name", ["mgda", "imtl-g"])
@pytest.mark.parametrize("deferred", [False, True])
def test_collapse_in_gradient_space_warns_once(name: str, deferred: bool) -> None:
    """The weights of the method itself count, which are known at the end of the backward pass."""
    w = torch.ones(2, requires_grad=True)
    balancer = cp.make(name, ["kl", "rest"])

    def run(steps: range) -> None:
        for step in steps:
            if deferred:
                balancer.loss(collapsing(step) * w, shared=[w]).backward()
            else:
                balancer.backward(collapsing(step) * w, shared=[w])

    (message,) = caught(lambda: run(range(220)))
    assert f"{type(balancer).__name__} has given task 'kl' more than 99.9% of the weight" in message
    assert "gives short gradients a large weight" in message
    assert "max_ratio" not in message


def test_collapse_of_a_method_that_compares_gradients_warns() -> None:
    w, balancer = torch.ones(2, requires_grad=True), cp.GradNormalise(["kl", "rest"])
    (message,) = caught(lambda: [balancer.backward(collapsing(k) * w, shared=[w]) for k in range(400)])
    assert "GradNormalise has given task 'kl' more than 99.9% of the weight" in message
    assert "gives short gradients a large weight" in message
    assert "cp.CAGrad, or bound the weights with max_ratio=" in message


@pytest.mark.parametrize("name", ["uw-o", "bpgs", "gls"])
@pytest.mark.parametrize("third", ["stands still", "falls"])
def test_collapse_to_two_tasks_together_warns_once(name: str, third: str) -> None:
    """A constant solves the residual and the boundary condition of an advection equation."""

    def losses(step: int) -> Tensor:
        small = 1e-2 * 0.97 ** min(step, 400)
        return torch.tensor([small, 0.5 if third == "stands still" else 0.5 * 0.99**step, 0.1 * small])

    messages = caught(repeat(cp.make(name, ["residual", "initial", "boundary"]), losses, 600))
    assert len(messages) == (third == "stands still")
    for message in messages:
        assert "has given tasks 'residual' and 'boundary' more than 99.9% of the weight" in message
        assert "training collapses to 'residual' and 'boundary' alone" in message


@pytest.mark.parametrize("name", ["uw-o", "bpgs", "famo"])
def test_a_loss_that_is_always_zero_and_gets_all_the_weight_warns_once(name: str) -> None:
    balancer = cp.make(name, ["labelled", "unlabelled"])

    def run() -> None:
        for _ in range(150):
            balancer(torch.tensor([1.0, 0.0]))
            balancer.step_end(torch.tensor([0.9, 0.0]))

    (message,) = caught(run)
    assert "the loss of task 'unlabelled' was 0 in 100% of the checked training steps" in message
    assert "Pass None for an absent task" in message
    assert caught(repeat(cp.make("static", 2), torch.tensor([1.0, 0.0]), 150)) == []


@pytest.mark.parametrize("share", [0.2, 0.6])
@pytest.mark.parametrize("name", ["uw-o", "bpgs"])
def test_a_loss_that_is_zero_in_some_batches_warns_once_and_is_no_collapse(name: str, share: float) -> None:
    balancer, draws = cp.make(name, ["boxes", "points"]), random.Random(0)

    def losses(step: int) -> Tensor:
        noise = 1 + 0.1 * draws.random()
        return torch.tensor([noise, 0.0 if draws.random() < share else 1 / noise])

    (message,) = caught(repeat(balancer, losses, 2000))
    assert "the loss of task 'points' was 0 in " in message
    assert "Pass None for an absent task" in message
    absent = repeat(cp.make(name, 2), lambda step: torch.tensor([1.0, torch.nan if step % 3 else 0.5]), 500)
    assert caught(absent) == []


@pytest.mark.parametrize("name", ["pcgrad", "upgrad", "graddrop"])
def test_vanishing_loss_is_no_collapse_if_the_weights_stay(name: str) -> None:
    w, balancer = torch.ones(2, requires_grad=True), cp.make(name, 2)
    assert caught(lambda: [balancer.backward(collapsing(k) * w, shared=[w]) for k in range(220)]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "collapses"), [("mgda", 0, True), ("nash-mtl", 1, False)])
def test_gradient_space_on_the_poisson_equation(name: str, seed: int, collapses: bool) -> None:
    """Nash-MTL gives the boundary 99.9% of the weight, too, but the residual falls."""
    case = PROBLEMS["poisson"](seed=seed)
    messages = caught(lambda: train(case, cp.make(name, case.tasks), steps=240))
    assert ["task 'boundary'" in message for message in messages] == [True] * collapses


@pytest.mark.parametrize(
    "losses",
    [
        lambda step: torch.tensor([0.9**step, 0.9**step]),  # both are learned
        lambda step: torch.tensor([0.9**step, 0.99**step]),  # the other one falls, more slowly
        lambda step: torch.tensor([0.9**step, 0.998**step]),  # the other one falls by a fifth in 100 steps
        lambda step: torch.tensor([1e-6, 1.0]),  # a difference of scale
        lambda step: torch.tensor([0.0, 1.0]),  # solved from the start
        lambda step: torch.tensor([0.9**step, 1.0]) if step % 50 < 25 else torch.ones(2),  # not for long
        lambda step: torch.tensor([0.9**step, torch.nan]),  # a lone task
    ],
)
def test_other_courses_are_no_collapse(losses: Callable[[int], Tensor]) -> None:
    balancer = cp.UWO(2)
    assert not any("more than" in message for message in caught(repeat(balancer, losses, 300)))


def test_collapse_needs_a_loss_that_is_negligible_next_to_the_others() -> None:
    """The softmax of UW-SO gives all the weight to a loss that is far from zero, for example on Yeast and RF1."""
    balancer = cp.UWSO(2)
    assert caught(repeat(balancer, lambda step: torch.tensor([max(0.9**step, 3e-3), 0.3]), 250)) == []
    assert balancer.weights is not None
    assert balancer.weights[0] > 0.999
    (message,) = caught(repeat(cp.UWSO(2), lambda step: torch.tensor([0.9**step, 0.3]), 250))
    assert "UWSO has given task 'task_0'" in message


SEEDS = [0, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", [cp.BPGS, cp.UWO])
@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_collapse_is_found_within_200_consecutive_steps_and_named(
    problem: str, method: type[cp.Weighting], seed: int
) -> None:
    case = PROBLEMS[problem](seed=seed)
    balancer, slot = method(case.tasks), case.tasks.index(case.collapsing)
    optimizer = torch.optim.Adam([{"params": case.parameters}, *balancer.param_groups()], lr=case.lr)
    values: list[float] = []
    collapsed: list[int] = []

    def run() -> None:
        for step in range(800):
            optimizer.zero_grad()
            balancer.backward(case.losses())
            optimizer.step()
            assert balancer.weights is not None
            assert balancer.losses is not None
            values.append(float(balancer.losses[slot]))
            # In the VAE the share is above 0.999 from the start, because of the scales alone.
            if float(balancer.weights[slot] / balancer.weights.sum()) > 0.999 and values[-1] < 0.01 * values[0]:
                collapsed.append(step)
            else:
                collapsed.clear()  # single steps with a larger loss, which depend on rounding, start the count again

    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        with pytest.raises(cp.BalanceWarning, match=rf"has given task '{case.collapsing}' more than 99.9%"):
            run()
    assert len(collapsed) <= 200
