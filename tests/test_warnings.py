"""Warnings about silent failures of a training loop: once each, in a category of their own."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.balance_warnings import caught, repeat
from torch import Tensor

import counterpoise as cp
from counterpoise._checks import StepChecks

LOGARITHMIC = [name for name in cp.methods() if cp.make(name, 2).requires_positive_losses]


@pytest.mark.parametrize("name", LOGARITHMIC)
def test_negative_loss_warns_once_at_the_first_step(name: str) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    balancer = cp.make(name, ["good", "bad"])

    def run() -> None:
        for _ in range(3):
            balancer.backward({"good": w.sum(), "bad": -w[1]}, shared=[w])
            balancer.step_end([w.detach().sum(), -w.detach()[1]])

    (message,) = caught(run)
    assert "the loss of task 'bad' is negative (-2)" in message
    assert "Do not shift it above zero: pass it as fixed={'bad': factor}" in message
    strict = cp.make(name, ["good", "bad"], strict=True)
    with pytest.raises(ValueError, match=r"task 'bad' is negative.*\(strict=True\)"):
        strict.backward({"good": w.sum(), "bad": -w[1]}, shared=[w])


@pytest.mark.parametrize("name", [name for name in cp.methods("loss") if name not in LOGARITHMIC])
def test_negative_loss_is_fine_for_methods_without_logarithms(name: str) -> None:
    needs = {"kpis": [0.5, 0.4]} if name == "dtp" else {}
    balancer = cp.make(name, 2, strict=True)
    assert caught(repeat(balancer, torch.tensor([1.0, -1.0]), 3, **needs)) == []


def test_first_loss_takes_negative_losses_after_a_positive_one() -> None:
    steps = iter(torch.tensor([[2.0, 0.5], [1.0, -0.5], [0.5, -1.0]]))
    balancer = cp.FirstLoss(["a", "b"], strict=True)
    assert caught(lambda: [balancer(losses) for losses in steps]) == []
    assert balancer.weights is not None
    assert balancer.weights.tolist() == [0.5, 2.0]
    combined = cp.CAGrad(2, weighting=cp.FirstLoss(2), strict=True)
    w = torch.ones(2, requires_grad=True)
    for sign in (1.0, -1.0):
        combined.backward([w.sum(), sign * w[0]], shared=[w])
    # the replica whose first loss is negative has no first loss yet
    replicas = cp.FirstLoss(["a", "b"], batch_shape=2)
    (message,) = caught(repeat(replicas, torch.tensor([[1.0, 1.0], [1.0, -2.0]]), 2))
    assert "task 'b' is negative (-2)" in message


def test_negative_loss_beside_an_absent_task_and_in_a_replica() -> None:
    assert "task 'b' is negative" in caught(repeat(cp.UWO(["a", "b"]), [None, torch.tensor(-1.0)], 1))[0]
    losses = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    assert "task 'b' is negative (-4)" in caught(repeat(cp.UWO(["a", "b"], batch_shape=2), losses, 2))[0]
    assert caught(repeat(cp.UWO(["a"], fixed={"entropy": 0.1}), [torch.tensor(1.0), torch.tensor(-4.0)], 2)) == []


def test_warnings_can_be_silenced_and_turned_into_errors() -> None:
    losses = torch.tensor([1.0, -1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=cp.BalanceWarning)
        cp.UWO(2)(losses)
        warnings.filterwarnings("error", category=cp.BalanceWarning)
        with pytest.raises(cp.BalanceWarning, match="negative"):
            cp.UWO(2)(losses)
    assert issubclass(cp.BalanceWarning, UserWarning)


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_loss_that_is_not_finite_for_100_steps_warns_once(hybrid: bool) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    names = ["good", "broken"]
    balancer = cp.PCGrad(names, weighting=cp.UWO(2)) if hybrid else cp.UWO(names)

    def run(steps: int) -> None:
        for _ in range(steps):
            balancer.backward([w.sum(), w[1] * torch.nan], shared=[w])

    assert caught(lambda: run(99)) == []
    (message,) = caught(lambda: run(101))
    assert "the loss of task 'broken' was not finite in 100 consecutive training steps" in message
    strict = cp.UWO(names, strict=True)
    with pytest.raises(ValueError, match="task 'broken' is not finite"):
        strict([w.sum(), w[1] * torch.nan])


def test_absent_tasks_are_not_reported_as_broken() -> None:
    one, nan = torch.tensor(1.0), torch.tensor(torch.nan)
    assert caught(repeat(cp.UWO(2), [one, None], 250)) == []
    assert caught(repeat(cp.UWO(2), lambda step: [one, nan if step % 99 else one], 250)) == []
    assert caught(repeat(cp.UWO(2), lambda step: [one, None if step < 240 else nan], 250)) == []
    assert caught(repeat(cp.UWO(2), torch.ones(2), 250, counts=torch.tensor([3, 0]))) == []
    assert caught(repeat(cp.UWO(2), lambda step: {f"task_{step % 2}": one}, 250)) == []


@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
def test_a_loss_that_is_not_finite_despite_samples_warns(replicas: tuple[int, ...]) -> None:
    """A mean over NaN labels: the counts say that there are labels, and the loss is NaN in every step."""
    losses, counts = torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([3, 2, 0])
    balancer = cp.UWO(["good", "broken", "empty"], batch_shape=replicas)
    run = repeat(balancer, losses.expand(*replicas, 3), 110, counts=counts.expand(*replicas, 3))
    (message,) = caught(run)
    assert "the loss of task 'broken' was not finite" in message


def test_warning_names_the_line_of_the_caller() -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.PCGrad(2, weighting=cp.UWO(2))
    with pytest.warns(cp.BalanceWarning, match="negative") as found:
        balancer.loss([w.sum(), -w[0]], shared=[w]).backward()
    assert found[0].filename == __file__


def test_no_task_for_100_steps_warns_once() -> None:
    for losses in ([None, None], torch.full((2,), torch.nan)):
        balancer = cp.BPGS(2)
        assert caught(repeat(balancer, losses, 99)) == []
        (message,) = caught(repeat(balancer, losses, 150))
        assert "no task had a finite loss in 100 consecutive training steps" in message
    assert caught(repeat(cp.BPGS(2), lambda step: [torch.tensor(1.0) if step % 90 == 0 else None, None], 250)) == []


def learn(balancer: cp.Balancer, groups: list[dict[str, Any]], steps: int) -> Callable[[], None]:
    x = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.AdamW([{"params": [x]}, *groups], lr=1e-3)

    def run() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            balancer.backward(torch.stack([x[0].square(), x[1].square()]))
            optimizer.step()

    return run


@pytest.mark.parametrize("name", ["bpgs", "kendall", "imtl-l"])
def test_a_parameter_that_no_optimiser_contains_warns_once(name: str) -> None:
    balancer = cp.make(name, 2)
    assert caught(learn(balancer, [], 99)) == []
    (message,) = caught(learn(balancer, [], 120))
    assert "no optimiser contains the learned parameter" in message
    assert "*balancer.param_groups()" in message
    assert caught(learn(cp.make(name, 2).requires_grad_(False), [], 150)) == []
    balancer = cp.make(name, 2)
    assert caught(learn(balancer, balancer.param_groups(), 150)) == []


def test_a_parameter_with_weight_decay_warns_once() -> None:
    balancer = cp.BPGS(2)
    (message,) = caught(learn(balancer, [{"params": list(balancer.parameters())}], 20))
    assert "in an optimiser group with weight_decay=0.01" in message
    own = cp.BPGS(2)
    other = torch.optim.Adam(own.parameters(), lr=1e-3)

    def two_optimisers() -> None:
        run = learn(own, [], 1)
        for _ in range(150):
            run()
            other.step()

    assert caught(two_optimisers) == []


@pytest.mark.parametrize(
    ("optimizer", "lr", "warns"), [("SGD", 0.01, True), ("SGD", 1e-3, False), ("Adam", 0.01, False)]
)
def test_a_large_step_of_theta_with_sgd_warns_once(optimizer: str, lr: float, warns: bool) -> None:
    x, balancer = torch.ones(2, requires_grad=True), cp.BPGS(2)
    groups = [{"params": [x]}, *balancer.param_groups(lr=lr)]
    trained = getattr(torch.optim, optimizer)(groups, lr=0.1)

    def run() -> None:
        for _ in range(20):
            trained.zero_grad()
            balancer(x.square() + torch.tensor([1.0, 100.0])).backward()
            trained.step()

    messages = caught(run)
    assert len(messages) == warns
    assert all("trained by SGD with lr=0.01" in m and "*balancer.param_groups(lr=0.001)" in m for m in messages)


@pytest.mark.parametrize("name", ["bpgs", "first-loss", "dwa", "grad-normalise", "cagrad", "uw-o"])
def test_training_in_evaluation_mode_warns_once_if_there_is_a_state(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    has_state = bool(cp.make(name, 2).state_dict())

    def steps(balancer: cp.Balancer, number: int) -> Callable[[], object]:
        return lambda: [balancer.backward([w[0].square(), w[1].square()], shared=[w]) for _ in range(number)]

    assert caught(steps(cp.make(name, 2).eval(), 99)) == []
    messages = caught(steps(cp.make(name, 2).eval(), 250))
    assert len(messages) == has_state
    assert all("was in evaluation mode" in m and "call balancer.train()" in m for m in messages)
    trained = cp.make(name, 2)
    steps(trained, 1)()
    assert caught(steps(trained.eval(), 150)) == []


@pytest.mark.parametrize("name", ["static", "pbi", "cosmos", "gls"])
def test_methods_that_never_adapt_do_not_warn_in_evaluation_mode(name: str) -> None:
    assert caught(repeat(cp.make(name, 2).eval(), torch.tensor([1.0, 2.0]), 150)) == []


def test_evaluation_without_gradients_does_not_warn() -> None:
    with torch.no_grad():
        assert caught(repeat(cp.BPGS(2).eval(), torch.tensor([1.0, 2.0]), 150)) == []


def test_warnings_leave_no_trace_in_copies_pickles_and_checkpoints() -> None:
    balancer = cp.BPGS(2)
    keys = list(balancer.state_dict())
    assert len(caught(repeat(balancer, torch.tensor([1.0, -1.0]), 20))) == 1
    assert list(balancer.state_dict()) == keys
    for other in (copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))):
        assert len(caught(repeat(other, torch.tensor([1.0, -1.0]), 2))) == 1
        assert torch.equal(other.theta, balancer.theta)
    balancer.reset()
    assert len(caught(repeat(balancer, torch.tensor([1.0, -1.0]), 2))) == 1


def test_evaluation_is_not_checked() -> None:
    balancer = cp.UWO(2).eval()
    assert caught(repeat(balancer, torch.tensor([1.0, -1.0]), 20)) == []
    with torch.no_grad():
        assert caught(repeat(balancer.train(), torch.tensor([1.0, -1.0]), 20)) == []


@pytest.mark.slow
def test_compiled_steps_are_not_checked() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(cp.UWO(2), fullgraph=True, backend="eager")
    assert caught(repeat(compiled, torch.tensor([1.0, -1.0]), 20)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["static", "bpgs", "cagrad"])
def test_a_fixed_loss_that_is_never_finite_warns_once(name: str) -> None:
    w, balancer = torch.ones(2, requires_grad=True), cp.make(name, 2, fixed={"kl": 0.1})

    def run(kl: float, steps: int) -> Callable[[], object]:
        losses = [w[0].square(), w[1].square(), torch.tensor(kl)]
        return lambda: [balancer.backward(losses, shared=[w], retain_graph=True) for _ in range(steps)]

    assert caught(run(1.0, 200)) == []
    (message,) = caught(run(torch.inf, 200))
    assert "the fixed loss 'kl' was not finite in any check of 100 training steps" in message


@pytest.mark.parametrize("form", ["mapping", "sequence", "stack", "fixed"])
def test_a_loss_without_a_graph_beside_others_warns_once(form: str) -> None:
    w = torch.ones(2, requires_grad=True)
    tasks = ["a", "detached", "b"]
    balancer: cp.Balancer = cp.UWO(tasks, fixed={"b": 1.0} if form == "fixed" else None)

    def step(_: int) -> None:
        losses = [w[0] * 2, w[1].detach() * 3, w[1] * 4]
        if form == "mapping":
            balancer.backward(dict(zip(tasks, losses, strict=True)))
        else:
            balancer.backward(torch.stack(losses) if form == "stack" else losses)

    (message,) = caught(lambda: list(map(step, range(3))))
    assert "the loss of task 'detached' has no graph" in message
    assert "Pass None for an absent task" in message


def test_constants_that_are_absent_fixed_or_alone_do_not_warn() -> None:
    w, constant = torch.ones(2, requires_grad=True), torch.tensor(1.0)
    assert caught(lambda: cp.UWO(2).backward([w.sum(), constant * torch.nan])) == []
    assert caught(lambda: cp.UWO(2).backward([w.sum(), None])) == []
    assert caught(lambda: cp.UWO(2, fixed={"l2": 1.0}).backward([w[0] * 2, w[1] * 3, constant])) == []
    assert caught(lambda: cp.UWO(2)([constant, constant])) == []
    assert caught(lambda: cp.UWO(2).eval()([w.sum(), constant])) == []
    counts = torch.tensor([3, 0])
    assert caught(lambda: cp.UWO(2)([w.sum(), constant], counts=counts)) == []


def test_famo_warns_if_the_losses_never_change() -> None:
    balancer = cp.FAMO(2)

    def run(*after: float) -> None:
        for loss in after:
            balancer(torch.ones(2))
            balancer.step_end(torch.tensor([1.0, loss]))

    assert caught(lambda: run(*[1.0] * 9, 0.9, *[1.0] * 9)) == []
    (message,) = caught(lambda: run(*[1.0] * 5))
    assert "compute the losses of the same batch again after the optimiser's step" in message


@pytest.mark.parametrize("space", ["loss", "gradient"])
def test_a_loss_that_was_never_given_warns_once(space: str) -> None:
    w, tasks = torch.ones(3, requires_grad=True), ["a", "b", "forgotten"]
    make = cp.UWO if space == "loss" else cp.PCGrad
    balancer: cp.Balancer = make(tasks, fixed={"kl": 0.1})

    def losses(step: int) -> dict[str, Tensor | None]:
        return {"a": w[0] * 2} if step % 2 else {"a": w[0] * 2, "b": w[1] * 3, "forgotten": None}

    def run(steps: int) -> list[str]:
        return caught(lambda: [balancer.backward(losses(k), shared=[w]) for k in range(steps)])

    assert run(499) == []
    one, two = run(60)
    assert "the loss of task 'forgotten' was not given in the first 500 training steps" in one
    assert "the fixed loss 'kl' was not given in the first 500 training steps" in two


def test_rare_tasks_do_not_count_as_never_given() -> None:
    w = torch.ones(2, requires_grad=True)
    for rare in ([w[0] * 2, w[1] * 3], {"task_1": w[1] * 3}):  # between two checks
        balancer = cp.UWO(2)
        steps = [rare if k == 11 else {"task_0": w[0] * 2} for k in range(560)]
        assert caught(lambda: [balancer.backward(losses) for losses in steps]) == []  # noqa: B023


def test_about_one_step_in_24_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(StepChecks, "_evaluate", lambda self, *_: looks.append(self.steps))
    balancer, losses = cp.UWO(2), torch.ones(2, requires_grad=True)
    for _ in range(2000):
        balancer(losses)
    assert looks[:8] == list(range(1, 9))
    assert 80 < len(looks) < 130


class FakeEvent:
    """Stands for a CUDA event."""

    arrived = True

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.arrived


@pytest.mark.parametrize("arrived", [True, False])
def test_copies_from_a_device_are_checked_once_they_have_arrived(
    arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events and pinned memory are replaced: they need a CUDA device."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "arrived", arrived)
    monkeypatch.setattr(torch, "empty", lambda shape, *, dtype, pin_memory: torch.zeros(shape, dtype=dtype))
    balancer, checks = cp.UWO(["easy", "hard"]), StepChecks()
    balancer([torch.ones(()), torch.ones(())])

    def look() -> None:
        for step in range(0, 640, 32):
            losses = torch.tensor([0.95**step, 1.0])
            checks.steps = step
            checks._look_asynchronously(balancer, losses, 1 / losses)

    messages = caught(look)
    assert len(messages) == arrived
    assert all("'easy'" in message for message in messages)


@pytest.mark.parametrize("name", ["mgda", "cr-mogm", "gradnorm", "grad-normalise", "ntk"])
def test_a_task_without_a_gradient_on_the_shared_tensors_warns_once(name: str) -> None:
    """A probe on detached features: methods that compare gradient sizes would give it all the weight, or none."""
    shared, probe = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    balancer = cp.make(name, ["task", "probe"])
    needs = cp.describe(name).needs

    def step() -> None:
        residuals = {"task": shared - 2, "probe": probe - 3}
        losses = {task: residual.square().mean() for task, residual in residuals.items()}
        options: dict[str, Any] = {"residuals": residuals} if "residuals" in needs else {}
        balancer.backward(losses, shared=[shared], **options)

    def run() -> None:
        for _ in range(120):
            step()

    (message,) = caught(run)
    assert "the loss of task 'probe' does not depend on the tensors of shared=" in message
    assert "fixed={'probe': factor}" in message


def test_a_smoothed_method_warns_as_the_method_does() -> None:
    w, v = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    balancer = cp.CRMOGM(2, method="upgrad")
    assert caught(lambda: balancer.backward([w.sum(), v.sum()], shared=[w])) == []


@pytest.mark.parametrize("name", ["dwa", "stch"])
def test_many_steps_without_the_end_of_an_epoch_warn_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.weighting._epochs.LONG_EPOCH", 5)
    losses = torch.tensor([1.0, 2.0])

    def train(balancer: cp.Balancer, epochs: int, steps: int) -> list[str]:
        def run() -> None:
            for _ in range(epochs):
                for _ in range(steps):
                    balancer(losses)
                balancer.epoch_end()

        return caught(run)

    (message,) = train(cp.make(name, 2), 2, 20)
    assert "has seen 5 steps without epoch_end()" in message
    assert train(cp.make(name, 2), 4, 5) == []
    assert train(cp.make(name, 2, max_epoch_steps=None), 1, 20) == []
