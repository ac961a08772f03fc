"""What real training loops need: mixed precision, accumulation, checkpoints, copies, replicas."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from helpers.toy import EPOCH, extra_arguments, problem, shared
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.optim.swa_utils import AveragedModel

import counterpoise as cp


class Run:
    """The toy run as an object that can be stopped and resumed."""

    def __init__(self, name: str) -> None:
        self.method = cp.describe(name)
        self.model, self.x, self.y = problem()
        self.balancer = cp.make(name, ["small", "large"])
        groups = [{"params": self.model.parameters()}, *self.balancer.param_groups(lr=0.05)]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.step_count = 0

    def losses(self) -> Tensor:
        batch = slice(16 * (self.step_count % 8), 16 * (self.step_count % 8) + 16)
        errors: Tensor = (self.model(self.x[batch]) - self.y[batch]).square()
        return errors.mean(0)

    def backward(self, losses: Tensor, **options: Any) -> Tensor:
        extra = extra_arguments(self.method, losses, self.losses)
        return self.balancer.backward(losses, shared=shared(self.model, self.method), **extra, **options)

    def step(self) -> None:
        losses = self.losses()
        self.optimizer.zero_grad()
        self.backward(losses)
        self.optimizer.step()
        with torch.no_grad():
            self.balancer.step_end(self.losses())
        self.step_count += 1
        if self.step_count % EPOCH == 0:
            self.balancer.epoch_end()

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        parts: dict[str, Any] = {"model": self.model, "balancer": self.balancer, "optimizer": self.optimizer}
        torch.save({key: part.state_dict() for key, part in parts.items()} | {"step": self.step_count}, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.balancer.load_state_dict(state["balancer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_count = state["step"]

    def load_network(self, other: "Run") -> None:
        self.model.load_state_dict(other.model.state_dict())
        self.step_count = other.step_count

    def fingerprint(self) -> list[Tensor]:
        held = [*self.model.parameters(), *self.balancer.state_dict().values()]
        return [torch.nan_to_num(t.detach().float()) for t in held if isinstance(t, Tensor)]


@pytest.mark.parametrize("stop", [1, 37])
@pytest.mark.parametrize("name", cp.methods())
def test_a_resumed_run_is_bit_identical(name: str, stop: int) -> None:
    straight, first, second = Run(name), Run(name), Run(name)
    for _ in range(70):
        straight.step()
    for _ in range(stop):
        first.step()
    second.load(first.save())
    for _ in range(70 - stop):
        second.step()
    for a, b in zip(straight.fingerprint(), second.fingerprint(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", cp.methods())
def test_copies_and_pickles_go_on_alike(name: str) -> None:
    run = Run(name)
    for _ in range(45):
        run.step()
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        torch.testing.assert_close(twin.balancer.weights, run.balancer.weights, rtol=0, atol=0)
        assert repr(twin.balancer) == repr(run.balancer)
    twin = pickle.loads(pickle.dumps(run))
    for _ in range(25):
        run.step()
        twin.step()
    for a, b in zip(run.fingerprint(), twin.fingerprint(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", cp.methods())
def test_reset_starts_over_in_place(name: str) -> None:
    run, fresh = Run(name), Run(name)
    addresses = [t.data_ptr() for t in (*run.balancer.parameters(), *run.balancer.buffers())]
    for _ in range(45):
        run.step()
    run.balancer.reset()
    assert run.balancer.weights is None
    assert addresses == [t.data_ptr() for t in (*run.balancer.parameters(), *run.balancer.buffers())]
    run.load_network(fresh)
    assert torch.equal(run.backward(run.losses()), fresh.backward(fresh.losses()))
    for a, b in zip(run.balancer.state_dict().values(), fresh.balancer.state_dict().values(), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


@pytest.mark.parametrize("through", ["call", "backward"])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_grad_scaler_scales_after_weighting(name: str, through: str) -> None:
    plain, scaled = Run(name), Run(name)
    for run, scaler in ((plain, None), (scaled, torch.amp.GradScaler("cpu", init_scale=1024.0))):
        losses = run.losses()
        extra = extra_arguments(run.method, losses)
        if scaler is None:
            run.balancer(losses, **extra).backward()
            continue
        if through == "call":
            scaler.scale(run.balancer(losses, **extra)).backward()
        else:
            run.balancer.backward(losses, scaler=scaler, **extra)
        scaler.unscale_(run.optimizer)
    torch.testing.assert_close(scaled.balancer.weights, plain.balancer.weights)
    pairs = zip(
        [*plain.model.parameters(), *plain.balancer.parameters()],
        [*scaled.model.parameters(), *scaled.balancer.parameters()],
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad)


def test_accumulation_adds_gradients_and_calibrates_once() -> None:
    run = Run("bpgs")
    balancer = run.balancer
    assert isinstance(balancer, cp.BPGS)
    parts = [run.losses(), run.losses() * torch.tensor([3.0, 0.1])]
    expected_network = [torch.zeros_like(p) for p in run.model.parameters()]
    expected_theta = torch.zeros(2)
    for losses in parts:
        (balancer(losses) / 2).backward(retain_graph=True)
        assert balancer.weights is not None
        grads = torch.autograd.grad((balancer.weights * losses).sum() / 2, list(run.model.parameters()))
        expected_network = [e + g for e, g in zip(expected_network, grads, strict=True)]
        step = cp.functional.bpgs(balancer.theta, losses)
        assert step.gradient is not None
        expected_theta = expected_theta + step.gradient / 2
    start = cp.BPGS(2)
    start(parts[0])
    assert torch.equal(start.theta, balancer.theta)
    for parameter, expected in zip(run.model.parameters(), expected_network, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
    torch.testing.assert_close(balancer.theta.grad, expected_theta)


def test_autocast_changes_nothing_inside() -> None:
    model, x, y = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        losses = [nn.functional.mse_loss(out[:, i].float(), y[:, i]) for i in range(2)]
        inside = cp.BPGS(2)(losses)
    assert torch.equal(inside, cp.BPGS(2)(losses))


REPLICAS = 120


def replica_options(name: str) -> dict[str, Any]:
    return {"seed": 5} if name == "rlw" else {}


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_stacked_replicas_are_separate_balancers(name: str) -> None:
    """120 replicas with losses (120, T) against 120 balancers: values, weights, gradients, state, over many steps."""
    method, tasks, rounds = cp.describe(name), 3, 6
    stacked = cp.make(name, tasks, batch_shape=(REPLICAS,), **replica_options(name)).double()
    single = [cp.make(name, tasks, **({"seed": 5 + i} if name == "rlw" else {})).double() for i in range(REPLICAS)]
    generator = torch.Generator().manual_seed(1)
    for count in range(rounds):
        losses = 10 ** torch.randn(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        if count == 2:
            losses[::7, 1] = torch.nan
            losses[5] = torch.nan  # a batch without labels
        kpis = torch.rand(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        leaf = losses.clone().requires_grad_()
        value = stacked(leaf, **({"kpis": kpis} if method.needs == ("kpis",) else {}))
        value.sum().backward()
        assert value.shape == (REPLICAS,)
        assert stacked.weights is not None
        for i, balancer in enumerate(single):
            alone = balancer(losses[i], **({"kpis": kpis[i]} if method.needs == ("kpis",) else {}))
            if alone.requires_grad:
                alone.backward()
            torch.testing.assert_close(value[i].detach(), alone.detach(), rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(stacked.weights[i], balancer.weights, rtol=1e-12, atol=1e-300)
            for mine, other in zip(stacked.parameters(), balancer.parameters(), strict=True):
                assert mine.grad is not None
                assert other.grad is not None
                torch.testing.assert_close(mine.grad[i], other.grad, rtol=1e-11, atol=1e-9)
        after = losses * torch.rand(REPLICAS, tasks, generator=generator, dtype=torch.float64)
        stacked.step_end(after)
        stacked.epoch_end()
        for i, balancer in enumerate(single):
            balancer.step_end(after[i])
            balancer.epoch_end()


def test_batched_losses_by_name() -> None:
    balancer = cp.BPGS(["a", "b"], batch_shape=5)
    a, b = torch.rand(5) + 0.1, 100 * torch.rand(5) + 1
    torch.testing.assert_close(balancer({"a": a, "b": b}), cp.BPGS(2, batch_shape=(5,))(torch.stack((a, b), -1)))
    with pytest.raises(ValueError, match=r"task 'a' has shape \(\), expected shape \(5,\)"):
        balancer({"a": a[0], "b": b})


def test_param_groups_have_no_decay() -> None:
    balancer = cp.BPGS(3)
    (group,) = balancer.param_groups(lr=0.1)
    assert group["weight_decay"] == 0
    assert group["lr"] == 0.1
    assert group["params"][0] is balancer.theta
    assert cp.Static(3).param_groups() == []
    optimizer = torch.optim.AdamW([{"params": nn.Linear(1, 1).parameters()}, *balancer.param_groups()])
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.01, 0.0]


@pytest.mark.parametrize("name", cp.methods())
def test_state_stays_wide_when_the_model_is_halved(name: str) -> None:
    model = nn.ModuleDict({"net": nn.Linear(2, 2), "balancer": cp.make(name, 2)}).half()
    assert model["net"].weight.dtype == torch.float16
    held = (*model["balancer"].parameters(), *model["balancer"].buffers())
    assert all(t.dtype == torch.float32 for t in held if t.is_floating_point())


@pytest.mark.parametrize("name", cp.methods())
def test_moves_with_to(name: str) -> None:
    balancer = cp.make(name, 2).to(torch.float64)
    assert all(t.dtype == torch.float64 for t in (*balancer.parameters(), *balancer.buffers()) if t.is_floating_point())
    moved = balancer.to("meta")
    assert all(t.device.type == "meta" for t in (*moved.parameters(), *moved.buffers()))


def test_a_copy_shares_its_process_group() -> None:
    class Group:
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("cannot be copied")

    balancer = cp.BPGS(2)
    balancer.process_group = Group()  # type: ignore[assignment]
    twin = copy.deepcopy(balancer)
    assert twin.process_group is balancer.process_group
    assert twin.theta is not balancer.theta


def test_repr_says_what_it_is() -> None:
    text = repr(cp.BPGS(["seg", "depth"], chart="stateless"))
    assert text == "BPGS(seg, depth, chart=stateless, calibrate=True, split=True, normalise=True)"


def test_registry() -> None:
    assert {cp.describe(name).name for name in ("UW_SO", "uwso", "UW-SO")} == {"uw-so"}
    assert cp.describe("GeometricMean").name == "gls"
    assert cp.describe("Kendall+L1").name == "kendall-l1"
    assert isinstance(cp.make("bpgs", ["a", "b"], theta_gain=1.0), cp.BPGS)
    assert cp.describe("famo").needs == ("step_end",)
    assert {cp.describe(name).name for name in cp.methods()} == set(cp.methods())
    with pytest.raises(ValueError, match="did you mean 'kendall'"):
        cp.make("kendal", 2)
    with pytest.raises(TypeError, match="BPGS has no option 'thetagain': did you mean 'theta_gain'"):
        cp.make("bpgs", 2, thetagain=1.0)
    assert cp.make("dwa", 2, max_epoch_steps=None, strict=True).strict
    with pytest.raises(ValueError, match="unknown space 'los'"):
        cp.methods("los")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        cp.describe("bpgs").name = "other"  # type: ignore[misc]


def test_weights_may_be_written_to() -> None:
    balancer, leaf = cp.UWO(2), torch.tensor([1.0, 4.0], requires_grad=True)
    value = balancer(leaf)
    assert balancer.weights is not None
    balancer.weights.zero_()
    value.backward()
    torch.testing.assert_close(leaf.grad, torch.tensor([1.0, 0.25]))


def test_a_copy_of_a_watched_or_compiled_balancer_is_its_own() -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.GradNorm(2)
    with cp.diagnose(balancer):
        twins = copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))
    for twin in twins:
        twin.backward([w[0], 5 * w[1]], shared=[w])
        assert not torch.equal(twin.task_weights, balancer.task_weights)
    assert balancer.task_weights.tolist() == [1.0, 1.0]
    average = cp.EMAUWO(2)
    average.compile(backend="eager")
    average(torch.tensor([1.0, 4.0], requires_grad=True))
    copy.deepcopy(average)(torch.tensor([100.0, 1.0], requires_grad=True))
    assert average.average.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("name", cp.methods())
def test_can_be_made_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        balancer = cp.make(name, 2)
    assert all(t.device.type == "meta" for t in (*balancer.parameters(), *balancer.buffers()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", cp.methods())
def test_state_is_born_wide_where_the_default_is_half(name: str, dtype: torch.dtype) -> None:
    """And then goes the same way."""
    plain, half = Run(name), Run(name)
    torch.set_default_dtype(dtype)
    try:
        half.balancer = cp.make(name, ["small", "large"])
        groups = [{"params": half.model.parameters()}, *half.balancer.param_groups(lr=0.05)]
        half.optimizer = torch.optim.AdamW(groups, lr=0.01)
        for _ in range(3):
            half.step()
    finally:
        torch.set_default_dtype(torch.float32)
    for _ in range(3):
        plain.step()
    for a, b in zip(plain.fingerprint(), half.fingerprint(), strict=True):
        assert torch.equal(a, b)
    state = half.balancer.state_dict().values()
    assert all(t.dtype == torch.float32 for t in state if isinstance(t, Tensor) and t.is_floating_point())


def test_options_are_not_rounded_to_a_half_precision_default() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        balancer = cp.Static(2, weights=[0.1, 0.3])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(balancer.weight, torch.tensor([0.1, 0.3]))


@pytest.mark.parametrize("name", cp.methods())
def test_an_averaged_model_may_hold_a_balancer(name: str) -> None:
    """It pairs the buffers of the model and of its copy, made before the first step, one by one."""
    run = Run(name)
    norm = nn.BatchNorm1d(3)
    whole = nn.ModuleDict({"balancer": run.balancer, "model": run.model, "norm": norm})
    average = AveragedModel(whole)
    for step in range(3):
        run.step()
        assert norm.running_mean is not None
        norm.running_mean.fill_(step)
        average.update_parameters(whole)
    for copied, own in zip(average.module.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(copied, own, rtol=0, atol=0, equal_nan=True)
    again = AveragedModel(whole)
    again.load_state_dict(average.state_dict())
    for a, b in zip(again.state_dict().values(), average.state_dict().values(), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl"])
def test_memory_moves_and_loads_with_the_rest(name: str) -> None:
    run, other = Run(name), Run(name)
    for _ in range(2):
        run.step()
    saved = {key: value for key, value in run.balancer.state_dict().items() if "memory" in key}
    assert [tuple(value.shape) for value in saved.values()] == [(2, 16, 8), (2, 16)]
    assert {value.dtype for value in run.balancer.double().state_dict().values()} == {torch.float64}
    assert {value.dtype for value in run.balancer.bfloat16().state_dict().values()} == {torch.float64}
    other.balancer.load_state_dict(run.balancer.state_dict())
    for key, value in other.balancer.state_dict().items():
        torch.testing.assert_close(value.double(), run.balancer.state_dict()[key], rtol=0, atol=1e-6)
    run.balancer.reset()
    assert not any("memory" in key for key in run.balancer.state_dict())


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl"])
def test_memory_is_found_by_name_and_fits_its_tasks(name: str) -> None:
    run, other = Run(name), Run(name)
    for one in (run, other):
        one.step()
    saved = get_model_state_dict(nn.ModuleDict({"balancer": run.balancer}))
    assert sum("memory" in key for key in saved) == 2
    set_model_state_dict(nn.ModuleDict({"balancer": other.balancer}), saved)
    states = run.balancer.state_dict(), other.balancer.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*memory\.first"):
        run.balancer.load_state_dict(run.balancer.state_dict() | {"memory.first": torch.zeros(1)})
    narrow = {key: value.half() if "memory" in key else value for key, value in run.balancer.state_dict().items()}
    run.balancer.reset()
    run.balancer.load_state_dict(narrow)
    assert all(value.dtype == torch.float32 for key, value in run.balancer.state_dict().items() if "memory" in key)
    more = {key: torch.cat((value, value)) for key, value in narrow.items() if "memory" in key}
    run.balancer.load_state_dict(narrow | more)
    with pytest.raises(ValueError, match="earlier ones had"):
        run.step()
