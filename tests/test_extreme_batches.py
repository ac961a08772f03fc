"""One extreme batch: the state of every method stays finite, and its weights return."""

import inspect
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise._state.adam import InternalAdam
from counterpoise.functional import CoVState, cov_update
from counterpoise.functional._outliers import GROWTH, OUTLIER, limit_outliers

TASKS = ("a", "b", "c")
BEFORE = 4  # ordinary steps before the extreme batch
EPOCH = 2
FLOAT32 = (0.0, 1e38, 1e-38, math.nan, math.inf, -5.0, 1e12)
FLOAT64 = (1e38, 1e300, 1e-300, 1e12)

# Number of ordinary steps after the batch, largest relative change of the direction then, and options. The decays are
# shorter than the defaults, so that few steps suffice. All other methods return in the next step.
RETURNS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "cov-weighting": (25, 0.01, {"decay": 0.5}),
    "cr-mogm": (12, 0.01, {"alpha": 0.5}),
    "db-mtl": (8, 0.01, {"beta": 0.5}),
    "dwa": (2 * EPOCH + 2, 0.01, {}),
    "ema-uw-o": (12, 0.01, {"beta": 0.5}),
    "grad-normalise": (16, 0.01, {"beta": 0.5}),
    "gradvac": (15, 0.01, {"beta": 0.5}),
    "lra": (8, 0.01, {"alpha": 0.5}),
    "m-config": (15, 0.01, {"beta": 0.5}),
    "pcd": (12, 0.01, {"beta": 0.5}),
    "pivrg": (8, 0.01, {"decay": 0.5}),
    "relobralo": (12, 0.01, {"alpha": 0.5}),
    "sdmgrad": (5, 0.01, {"lr": 0.5}),  # with the default, w jumps between corners
    "softadapt": (2, 0.01, {}),
    # These learn or integrate: one step more or less changes the rest of the run.
    "bpgs": (1, 0.01, {}),
    "excess-mtl": (1, 0.05, {"lr": 0.01}),
    "famo": (1, 0.1, {}),
    "gradnorm": (1, 0.05, {"lr": 0.001}),
    "imtl": (1, 0.06, {}),
    "imtl-l": (1, 0.06, {}),
    "kendall": (1, 0.06, {}),
    "kendall-l1": (1, 0.06, {}),
    "moco": (30, 0.1, {"beta": 1.0}),
    "modo": (2, 0.05, {}),
    "bpgs gradient": (40, 0.25, {}),
}
PERMANENT = {"go4align": (1e12,), "excess-mtl": (-5.0,)}  # values that change the probabilities or weights for good
VARIANTS: dict[str, Callable[..., cp.Balancer]] = {
    "bpgs stateless": lambda **options: cp.BPGS(TASKS, chart="stateless", **options),
    "bpgs gradient": lambda **options: cp.BPGS(TASKS, statistic="gradient", every=1, **options),
    "cr-mogm fairgrad": lambda **options: cp.CRMOGM(TASKS, method="fairgrad", alpha=0.5, **options),
}


class Batches:
    """Losses of three tasks, for one replica per extreme batch. The first replica skips that batch."""

    def __init__(self, values: tuple[float, ...], dtype: torch.dtype) -> None:
        some, all_tasks = ((0,), (2,), (0, 1, 2)), (0, 1, 2)
        self.kinds = [(math.nan, all_tasks), *((value, tasks) for value in values for tasks in some)]
        self.extreme = torch.ones(len(self.kinds), 3, dtype=dtype)
        self.chosen = torch.zeros(len(self.kinds), 3, dtype=torch.bool)
        for replica, (value, tasks) in enumerate(self.kinds):
            for task in tasks:
                self.extreme[replica, task], self.chosen[replica, task] = value, True
        self.w = torch.ones(len(self.kinds), 4, dtype=dtype, requires_grad=True)
        self.generator, self.step = torch.Generator().manual_seed(1), -1

    def draw(self) -> None:
        self.x = (torch.rand(3, 4, generator=self.generator) + 0.5).to(self.w.dtype)
        self.step += 1

    def losses(self) -> Tensor:
        targets = torch.tensor([0.0, 1.0, 9.0], dtype=self.w.dtype)  # the gradient of the last task opposes the others
        losses = 0.02 * ((self.x * self.w.unsqueeze(-2)).sum(-1) - targets).square()
        if self.step != BEFORE:
            return losses
        return torch.where(self.chosen, losses / losses.detach() * self.extreme, losses)


def extra_arguments(method: cp.Method, losses: Tensor, again: Callable[[], Tensor]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"kpis": [0.5, 0.6, 0.7]} if "kpis" in method.needs else {}
    if "residuals" in method.needs:
        arguments["residuals"] = dict(zip(TASKS, losses.unbind(-1), strict=True))
    return arguments | {need: again for need in ("validation", "training") if need in method.needs}


def train(balancer: cp.Balancer, method: cp.Method, batches: Batches, steps: int) -> Tensor:
    """Return the shared gradients of the last of the ordinary steps after the extreme batch."""
    learned, w = list(balancer.parameters()), batches.w
    optimizer = torch.optim.SGD(learned, lr=0.01) if learned else None
    for step in range(BEFORE + 1 + steps):
        batches.draw()
        losses = batches.losses()
        w.grad = None
        balancer.backward(losses, shared=[w], **extra_arguments(method, losses, batches.losses))
        if optimizer is not None:
            torch.nn.utils.clip_grad_value_(learned, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if "step_end" in method.needs:
            balancer.step_end(batches.losses().detach() * torch.tensor([0.99, 0.98, 0.97]))
        if (step + 1) % EPOCH == 0:
            balancer.epoch_end()
        counter = dict(balancer.named_buffers()).get("counter")
        if step == BEFORE and counter is not None:
            counter.fill_(int(counter.max()))  # a skipped batch may take no random numbers
    assert w.grad is not None
    return w.grad


def assert_finite_state(balancer: cp.Balancer) -> None:
    for key, value in balancer.state_dict().items():
        assert not isinstance(value, Tensor) or bool(torch.isfinite(value).all()), key


def make(name: str, replicas: int, options: dict[str, Any]) -> tuple[cp.Balancer, cp.Method]:
    method = cp.describe("grad-normalise" if name == "bpgs gradient" else name.split()[0])
    if name in VARIANTS:
        return VARIANTS[name](batch_shape=replicas), method
    accepted = inspect.signature(method.build).parameters
    options = options | ({"every": 1} if "every" in accepted else {})
    options |= {"seed": [0] * replicas} if "seed" in accepted else {}
    return cp.make(name, TASKS, batch_shape=replicas, **options), method


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [*sorted(set(cp.methods()) - {"auto-lambda"}), *VARIANTS])
@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
def test_weights_return_after_one_extreme_batch(name: str, dtype: torch.dtype) -> None:
    """Compare each replica with the one that skips the batch. Auto-λ does not separate replicas, see below."""
    batches = Batches(FLOAT32 if dtype == torch.float32 else FLOAT64, dtype)
    steps, tolerance, options = RETURNS.get(name, RETURNS["cr-mogm"] if name in VARIANTS else (1, 1e-3, {}))
    balancer, method = make(name, len(batches.kinds), options)
    found = train(balancer.to(dtype), method, batches, steps)
    assert_finite_state(balancer)
    assert bool(torch.isfinite(found).all())
    change = (found - found[0]).norm(dim=-1) / found[0].norm()
    for kind, size in zip(batches.kinds, change.tolist(), strict=True):
        assert size < tolerance or kind[0] in PERMANENT.get(name, ()), (kind, size)


def test_documentation_lists_the_methods_that_remember_a_batch() -> None:
    page = pathlib.Path(__file__).parents[1] / "docs" / "absent-tasks.md"
    section = page.read_text(encoding="utf-8").split("## One extreme batch")[1]
    missing = {name for name in {*RETURNS, *PERMANENT} - set(VARIANTS) if f"`{name}`" not in section}
    assert not missing


@pytest.mark.parametrize("value", [0.0, 1e38, 1e12])
@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
def test_auto_lambda_moves_by_few_learning_rates(value: float) -> None:
    moved = []
    for extreme in (math.nan, value):
        balancer, batches = cp.AutoLambda(TASKS, lr=0.01), Batches((extreme,), torch.float32)
        batches.chosen, batches.extreme = batches.chosen[1], batches.extreme[1]
        batches.w = torch.ones(4, requires_grad=True)
        train(balancer, cp.describe("auto-lambda"), batches, steps=12)
        assert_finite_state(balancer)
        moved.append(balancer.lam)
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=0.1)


def test_internal_adam_keeps_its_step_size_after_an_outlier() -> None:
    adam, value = InternalAdam((2,)), torch.zeros(2)
    for step in range(40):
        gradient = torch.tensor([1.0, 1e15 if step == 10 else 1.0])
        assert step == 10 or torch.equal(adam.limit_outliers(gradient), gradient)
        adam.update(value, adam.limit_outliers(gradient), lr=0.01)
    torch.testing.assert_close(value[1], value[0], rtol=0, atol=0.03)


@pytest.mark.parametrize("rate", [0.1, 0.001, 1.0])
def test_an_outlier_multiplies_a_running_mean_by_about_ten(rate: float) -> None:
    means = torch.tensor([1.0, 1.0, -2.0, 0.0, torch.nan, 1.0])
    values = torch.tensor([OUTLIER, 1e30, -1e30, 1e30, 1e30, -1e30])
    limited = limit_outliers(values, means, rate)
    assert torch.equal(limited[[0, 3, 4]], values[[0, 3, 4]])  # at the bound, and without a mean to compare with
    moved = means + rate * (limited - means)
    assert bool((moved[[1, 2, 5]].abs() <= (1 + GROWTH) * means[[1, 2, 5]].abs()).all())


def test_a_running_mean_follows_a_lasting_change_of_scale() -> None:
    mean = torch.tensor([1.0])
    for _ in range(25):
        mean = mean + 0.5 * (limit_outliers(torch.tensor([1e12]), mean, 0.5) - mean)
    torch.testing.assert_close(mean, torch.tensor([1e12]), rtol=1e-2, atol=0)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_nadir_ignores_an_unusable_loss_of_its_epoch(position: int) -> None:
    balancer = cp.STCH(2, warmup=0)
    for step in range(4):
        balancer(torch.tensor([1e38 if step == position else 2.0, 4.0]))
    balancer.epoch_end()
    assert balancer.nadir.tolist() == [2.0, 4.0]


def test_cov_ignores_an_unusable_loss() -> None:
    state = CoVState(*torch.zeros(4, 2))
    for losses in ([1.0, 4.0], [2.0, 3.0]):
        state = cov_update(state, torch.tensor(losses))
    assert all(map(torch.equal, cov_update(state, torch.tensor([1e38, torch.nan])), state))


def test_objective_that_overflows_is_infinite() -> None:
    step = cp.functional.weighted_sum(torch.tensor([1e30, 1.0]), torch.tensor([1e30, 1.0]))
    assert step.objective.item() == math.inf
    assert cp.GO4Align(3)(torch.tensor([1e-30, 1.0, 1e30])).item() == math.inf


def test_memory_returns_after_one_extreme_loss() -> None:
    balancer = cp.UWO(2, memory=True)
    for step in range(80):
        balancer(torch.tensor([1e38 if step == 3 else 2.0, 4.0]))
    balancer({"task_1": torch.tensor(4.0)})
    torch.testing.assert_close(balancer.recent, torch.tensor([2.0, 4.0]), rtol=0.01, atol=0)


@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
def test_excess_mtl_does_not_lose_a_weight() -> None:
    """A weight that underflows has no logarithm, from which the task would not recover."""
    w, balancer = torch.ones(2, requires_grad=True), cp.ExcessMTL(2)
    for scale in (1.0, 1e4, 1.0, 1.0):
        balancer.backward([scale * w[0], w[1]], shared=[w])
    assert bool((balancer.task_weights.log() > -torch.inf).all())
