"""The monitor: correct statistics and advice, and no effect on training."""

import builtins
import copy
import json
import math
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.paths import ROOT
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import counterpoise as cp
from counterpoise.diagnostics.advice import DIVIDES_BY_LOSSES, FOLLOWS_NORMS, MEASURED_SCALE_FREE, SCALE_FREE

TASKS = ["a", "b", "c"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def losses(self, step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(10, 6, generator=generator), torch.randn(10, 3, generator=generator)
        errors = (self.head(self.trunk(x)) - y).square().mean(0) * torch.tensor([1.0, 900.0, 0.01])
        return dict(zip(TASKS, errors, strict=True))


def train(name: str, monitored: bool, **options: Any) -> tuple[Net, cp.Monitor, cp.Balancer]:
    net, balancer = Net(), cp.make(name, TASKS, **options)
    optimizer = torch.optim.Adam([{"params": net.parameters()}, *balancer.param_groups()], lr=0.01)
    monitor = cp.diagnose(balancer, shared=net.trunk.parameters(), every=5)
    if monitored:
        monitor.__enter__()
    for step in range(25):
        optimizer.zero_grad()
        balancer.backward(net.losses(step), shared=net.trunk.parameters())
        optimizer.step()
    monitor.__exit__(None, None, None)
    return net, monitor, balancer


@pytest.mark.parametrize("name", ["bpgs", "pcgrad", "cagrad"])
def test_monitoring_does_not_change_training(name: str) -> None:
    options = [{"weighting": cp.BPGS(TASKS)} if name == "cagrad" else {} for _ in range(2)]
    plain, _, _ = train(name, False, **options[0])
    monitored, monitor, balancer = train(name, True, **options[1])
    for a, b in zip(plain.parameters(), monitored.parameters(), strict=True):
        assert torch.equal(a, b)
    found = monitor.diagnosis
    assert (found.steps, found.gradient_checks) == (25, 5)
    assert len(found.abs_z_over_tau) == (0 if name == "pcgrad" else 3)
    assert all(0 <= z <= 1 for z in found.abs_z_over_tau)
    balancer.backward(monitored.losses(0), shared=monitored.trunk.parameters())  # no longer monitored
    assert monitor.diagnosis.steps == 25


@pytest.mark.parametrize("name", ["bpgs", "pcgrad", "cagrad", "nash-mtl"])
def test_losses_of_a_deferred_backward_pass_are_recorded(name: str) -> None:
    found = []
    for deferred in (False, True):
        net, balancer = Net(), cp.make(name, TASKS)
        shared = list(net.trunk.parameters())
        with cp.diagnose(balancer, shared=shared, every=2) as monitor:
            for step in range(6):
                options: dict[str, Any] = {"shared": shared, "counts": torch.tensor([10, 10 * (step % 2), 10])}
                if deferred:
                    balancer.loss(net.losses(step), **options).backward()
                else:
                    balancer.backward(net.losses(step), **options)
        found.append(monitor.diagnosis)
    assert found[0] == found[1]
    assert found[1].absent[1] == 0.5


def test_advice_on_absent_tasks_of_another_scale_is_to_remember_their_losses() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = [{"a": torch.tensor(900.0), "b": torch.tensor(700.0), "c": torch.tensor(0.5)} for _ in range(60)]
    for at in losses:
        at |= {name: value * (1 + 0.1 * torch.rand((), generator=generator)) for name, value in at.items()}
    for at in losses[::5]:
        del at["c"]

    def advice(balancer: cp.Balancer) -> str:
        with cp.diagnose(balancer) as monitor:
            for at in losses:
                balancer(at)
        return monitor.diagnosis.advice[0]

    assert "use BPGS: cp.BPGS(['a', 'b', 'c'], memory=True)" in advice(cp.Static(TASKS))
    assert "divides the weight of an absent task among the others: pass memory=True" in advice(cp.BPGS(TASKS))
    assert "keep it" in advice(cp.BPGS(TASKS, memory=True))
    assert "keep it" in advice(cp.UWO(TASKS))


def test_statistics_agree_with_numpy() -> None:
    net = Net()
    history, grams = [], []
    with cp.diagnose(net.losses(0), shared=net.trunk.parameters(), every=1) as monitor:
        for step in range(4):
            losses = monitor(net.losses(step))
            history.append([loss.item() for loss in losses.values()])
            rows = [torch.autograd.grad(x, [*net.trunk.parameters()], retain_graph=True) for x in losses.values()]
            j = np.stack([np.concatenate([g.numpy().ravel() for g in row]) for row in rows]).astype(np.float64)
            grams.append(j @ j.T)
    found, values = monitor.diagnosis, np.array(history)
    np.testing.assert_allclose(found.decades, np.log10(values.max(1) / values.min(1)), rtol=1e-5)
    np.testing.assert_allclose(found.std, np.log(values).std(1), rtol=1e-5)
    norms = np.array([np.sqrt(np.diag(gram)) for gram in grams])
    cosines = np.array([gram / np.outer(n, n) for gram, n in zip(grams, norms, strict=True)])
    np.testing.assert_allclose(found.cosines, cosines.mean(0), atol=1e-5)
    pairs = cosines[:, [0, 0, 1], [1, 2, 2]]
    assert found.negative == pytest.approx((pairs < 0).mean())
    assert found.conflict == pytest.approx((pairs < -0.1).mean())


def test_absent_tasks_are_counted() -> None:
    net = Net()
    with cp.diagnose(TASKS, shared=net.trunk.parameters(), every=1) as monitor:
        for step in range(4):
            losses: dict[str, Tensor | None] = {**net.losses(step)}
            if step:
                losses["b"] = None
            if step == 3:
                losses["a"] = torch.tensor(torch.nan)
            monitor(losses)
    found = monitor.diagnosis
    assert found.absent == (0.25, 0.75, 0.0)
    assert "b was absent in 75% of the steps." in found.advice
    assert all(math.isfinite(x) for x in (*found.losses, *found.decades, *found.norms))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_task_that_is_often_absent_is_compared_with_the_others(share: float) -> None:
    def diagnose(share: float) -> cp.Diagnosis:
        torch.manual_seed(0)
        w, draws = torch.randn(6, requires_grad=True), random.Random(1)
        with cp.diagnose(TASKS, shared=[w], every=2) as monitor:
            for _ in range(300):
                errors = w.reshape(3, 2).square().sum(-1) + 1
                large = None if draws.random() < share else 1e4 * errors[2]
                monitor({"a": errors[0], "b": errors[1], "c": large})
        return monitor.diagnosis

    complete, partial = diagnose(0.0), diagnose(share)
    assert partial.verdict == complete.verdict
    for name in ("spread", "norm_spread", "norm_spread_over_losses"):
        assert getattr(partial, name) == pytest.approx(getattr(complete, name), abs=1e-6)
    assert partial.advice[0] == complete.advice[0].replace("['a', 'b', 'c']", "['a', 'b', 'c'], memory=True")


def test_tasks_of_alternating_batches_are_compared() -> None:
    net = Net()
    with cp.diagnose(TASKS, shared=net.trunk.parameters()) as monitor:
        for step in range(30):
            task = TASKS[step % 3]
            monitor({task: net.losses(step)[task].detach() * 0 + 1000.0 ** (step % 3)})
    found = monitor.diagnosis
    assert found.spread == pytest.approx(6.0)
    assert found.verdict == "scale"
    assert any("Conflict could not be measured" in line for line in found.advice)


@pytest.mark.parametrize("parity", [0, 1])
def test_periodic_conflict_is_measured(parity: int) -> None:
    w = torch.ones(2, requires_grad=True)
    with cp.diagnose(2, shared=[w]) as monitor:
        for step in range(600):
            sign = -1 if step % 2 == parity else 1
            monitor([w.sum() + 3, sign * w.sum() + 3])
    assert monitor.diagnosis.conflict == pytest.approx(0.5, abs=0.15)


def test_negative_loss_is_reported() -> None:
    with cp.diagnose(["a", "b"]) as monitor:
        monitor(torch.tensor([1.0, -500.0]))
    assert any(line.startswith("The loss of b was negative in 100%") for line in monitor.diagnosis.advice)


def test_reentrant_checkpoints_are_not_checked() -> None:
    trunk, heads = nn.Linear(4, 8), nn.Linear(8, 2)
    stem = nn.Linear(4, 4)
    shared = [*stem.parameters(), *trunk.parameters()]
    with cp.diagnose(cp.PCGrad(2), shared=shared) as monitor:
        assert monitor.balancer is not None
        z = checkpoint(trunk, stem(torch.randn(8, 4)), use_reentrant=True)
        monitor.balancer.backward(list(heads(z).square().mean(0)), shared=shared)
    assert all(p.grad is not None for p in shared)


@pytest.mark.parametrize("balancer", [cp.BPGS(2), cp.PCGrad(2)])
def test_copies_are_not_monitored_and_monitors_nest(balancer: cp.Balancer) -> None:
    w = torch.ones(2, requires_grad=True)
    with cp.diagnose(balancer) as first:
        with cp.diagnose(balancer) as second:
            pickled = pickle.loads(pickle.dumps(balancer))
            for copied in (balancer, copy.deepcopy(balancer), pickled):
                copied.backward([w[0] ** 2, 5 * w[1] ** 2], shared=[w])
        balancer.backward([w[0] ** 2, 5 * w[1] ** 2], shared=[w])
    balancer.backward([w[0] ** 2, 5 * w[1] ** 2], shared=[w])
    assert (first.diagnosis.steps, second.diagnosis.steps) == (2, 1)


def test_saturated_chart_is_reported() -> None:
    balancer = cp.BPGS(TASKS, calibrate=False)
    with torch.no_grad():
        balancer.theta.copy_(torch.tensor([9.0, 0.0, 0.0]))
    with cp.diagnose(balancer) as monitor:
        balancer([torch.tensor(loss, requires_grad=True) for loss in (1.0, 2.0, 3.0)])
    assert any(line.startswith("The chart saturates at a") for line in monitor.diagnosis.advice)


@pytest.mark.parametrize("tasks", [2, 3, 26, 200])
def test_single_outlier_is_not_reported_as_saturated(tasks: int) -> None:
    """A single outlier has |z| = √(T − 1), close to τ for many tasks, but θ still moves it."""
    losses = torch.ones(tasks).index_fill(0, torch.tensor(0), 1e4)
    balancer = cp.BPGS(tasks)
    with cp.diagnose(balancer) as monitor:
        balancer(losses)
    found, geometry = monitor.diagnosis, balancer.geometry
    assert geometry is not None
    assert found.abs_z_over_tau[0] == pytest.approx(math.sqrt(tasks - 1) / (math.sqrt(tasks - 1) + 0.1))
    assert 0.09 < float(geometry.width * geometry.slope[0] / geometry.std) < 0.11
    assert not any("saturates" in line for line in found.advice)
    for fraction, reported in ((0.5, False), (0.9, True)):  # of the margin
        z = (math.sqrt(tasks - 1) + 0.1 * fraction) / (math.sqrt(tasks - 1) + 0.1)
        with torch.no_grad():
            balancer.theta[0] = math.log((1 + z) / (1 - z))
        with cp.diagnose(balancer) as monitor:
            balancer(losses)
        assert any("saturates at task_0" in line for line in monitor.diagnosis.advice) is reported


def test_task_without_samples_is_absent() -> None:
    net, balancer = Net(), cp.BPGS(TASKS)
    with cp.diagnose(balancer, shared=net.trunk.parameters(), every=1) as monitor:
        balancer(net.losses(0), counts=torch.tensor([10, 0, 10]))
    found = monitor.diagnosis
    assert found.absent == (0.0, 1.0, 0.0)
    assert math.isnan(found.losses[1])
    assert math.isnan(found.norms[1])


def test_save_and_print(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    found = train("bpgs", True)[1].diagnosis
    found.save(tmp_path / "found.json")
    saved = json.loads((tmp_path / "found.json").read_text())
    assert saved["verdict"] == found.verdict
    assert saved["advice"] == list(found.advice)
    original_import = builtins.__import__

    def without_rich(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ModuleNotFoundError(name)
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    found.print()
    assert capsys.readouterr().out.strip() == str(found)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found.json"]


def test_invalid_use_raises() -> None:
    with pytest.raises(RuntimeError, match="recorded no losses"):
        _ = cp.diagnose(2).diagnosis
    with pytest.raises(ValueError, match="one model"):
        cp.diagnose(cp.BPGS(2, batch_shape=3))
    with pytest.raises(ValueError, match="every is 0"):
        cp.diagnose(2, every=0)
    with pytest.raises(ValueError, match="unknown task"):
        cp.diagnose(["a"])({"b": torch.tensor(1.0)})


@pytest.mark.parametrize(
    ("name", "options", "designed_for_scale"),
    [
        ("static", {}, False),
        ("bpgs", {}, True),
        ("pcgrad", {}, False),
        ("pcgrad", {"weighting": cp.BPGS(TASKS)}, True),
        ("nash-mtl", {}, True),
    ],
)
def test_suitable_method_is_kept(name: str, options: dict[str, Any], designed_for_scale: bool) -> None:
    found = train(name, True, **options)[1].diagnosis
    assert found.verdict in ("scale", "both")
    assert ("keep it" in found.advice[0]) == (
        designed_for_scale and (found.verdict == "scale" or found.in_gradient_space)
    )
    assert ("use BPGS" in found.advice[0]) != ("keep it" in found.advice[0])


def test_scale_free_methods_agree_with_recorded_scores() -> None:
    """The score of a scale-free method drops by less than 0.005 if one loss is multiplied by 1000."""
    tables = (ROOT / "results" / "beyond" / "tables" / "beyond-rescaling.md").read_text(encoding="utf-8")
    caption, macro = tables.split("\n\n")[:2]
    assert "macro score" in caption
    header, _, *rows = [line.strip("| ").split(" | ") for line in macro.splitlines()]
    assert header == ["method", "×1", "×10", "×100", "×1000"]
    scale_free, names = set(), {"Gradient normalisation": "grad-normalise", "Sum": "static"}
    for label, *cells in rows:
        method = label.rsplit(" (", 1)[0]  # without the learning rate
        first, *_, last = [float(re.findall(r"\d\.\d+", cell)[0]) for cell in cells]
        is_variant = "BPGS " in method or " + " in method
        if not is_variant and abs(first - last) < 0.0045:
            scale_free.add(cp.describe(names.get(method, method)).build.__name__)
    assert scale_free == MEASURED_SCALE_FREE


@pytest.mark.parametrize("name", sorted(SCALE_FREE - MEASURED_SCALE_FREE))
def test_direction_of_scale_free_methods_does_not_depend_on_a_factor(name: str) -> None:
    directions = []
    for factor in (1.0, 1000.0):
        net, balancer = Net(), cp.make(name, TASKS)
        for step in range(3):
            net.zero_grad()
            losses = net.losses(step)
            balancer.backward(losses | {"a": factor * losses["a"]}, shared=net.trunk.parameters())
        row = torch.cat([p.grad.flatten() for p in net.trunk.parameters() if p.grad is not None])
        directions.append(nn.functional.normalize(row, dim=0))
    torch.testing.assert_close(*directions, rtol=1e-3, atol=1e-4)


def test_lists_of_methods_name_registered_classes() -> None:
    classes = {cp.describe(name).build.__name__ for name in cp.methods()} | {"BPGS(statistic='gradient')"}
    assert classes >= SCALE_FREE | DIVIDES_BY_LOSSES | FOLLOWS_NORMS
    assert {cp.describe(name).build.__name__ for name in cp.methods("scale")} <= FOLLOWS_NORMS
    assert not DIVIDES_BY_LOSSES & FOLLOWS_NORMS


@pytest.mark.parametrize("name", ["first-loss", "go4align"])
def test_methods_that_divide_by_losses_are_not_kept_if_a_loss_vanishes(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.make(name, ["a", "b"])
    with cp.diagnose(balancer, shared=[w], every=1) as monitor:
        for step in range(60):
            balancer.backward([w[0] * 10 ** (-step / 10), 3.0 + 0 * w[1]], shared=[w])
    assert monitor.diagnosis.vanishing == ("a",)
    assert "keep it" not in str(monitor.diagnosis)


@pytest.mark.parametrize("name", ["grad-normalise", "lra", "gradnorm", "gradnorm-proxy"])
def test_methods_that_follow_gradient_norms_are_kept_if_gradients_differ(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.make(name, ["a", "b"])
    with cp.diagnose(balancer, shared=[w], every=1) as monitor:
        for _ in range(20):
            balancer.backward([w[0], 500 * w[1]], shared=[w])
    assert monitor.diagnosis.verdict == "scale"
    assert "keep it" in monitor.diagnosis.advice[0]


@pytest.mark.parametrize("name", ["grad-normalise", "gradnorm", "gradnorm-proxy"])
def test_methods_that_follow_gradient_norms_are_not_kept_if_tasks_also_conflict(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.make(name, ["a", "b"])
    with cp.diagnose(balancer, shared=[w], every=1) as monitor:
        for _ in range(20):
            balancer.backward([9 + w[0], 1000 - 500 * w[0] + w[1]], shared=[w])
    assert monitor.diagnosis.verdict == "both"
    assert "keep it" not in monitor.diagnosis.advice[0]


def test_compiled_step_is_not_monitored() -> None:
    net, balancer = torch.nn.Linear(6, 3), cp.BPGS(3)
    with cp.diagnose(balancer) as monitor:
        step = torch.compile(lambda x: balancer((net(x) - 1).square().mean(0)), backend="eager", fullgraph=True)
        for _ in range(12):
            step(torch.randn(16, 6)).backward()
    with pytest.raises(RuntimeError, match="cannot monitor a compiled step"):
        _ = monitor.diagnosis


def test_advice_says_that_gradients_were_not_compared() -> None:
    with cp.diagnose(2) as monitor:
        monitor(torch.tensor([1.0, 2.0]))
    advice = monitor.diagnosis.advice
    assert advice[0].endswith("unless tasks conflict or the sizes of their gradients differ.")
    assert any("pass shared=" in line for line in advice)


@pytest.mark.parametrize("name", ["bpgs", "cagrad"])
@pytest.mark.parametrize(("factor", "dominates"), [(0.001, False), (20.0, True)])
def test_fixed_losses_that_dominate_are_reported(name: str, factor: float, dominates: bool) -> None:
    w = torch.tensor([0.3, 0.4], requires_grad=True)
    weighting = {"weighting": cp.BPGS(["a", "b"])} if name == "cagrad" else {}
    balancer = cp.make(name, ["a", "b"], fixed={"kl": factor}, **weighting)
    with cp.diagnose(balancer, shared=[w], every=1) as monitor:
        for _ in range(10):
            kl = w.square().sum() / 2
            balancer.backward({"a": (w[0] - 1).square(), "b": 1e3 * (w[1] - 1).square(), "kl": kl}, shared=[w])
    found, weights = monitor.diagnosis, balancer.weights
    assert weights is not None
    expected = factor * 0.5 / float((weights * torch.tensor([1.4, 1.2e3])).norm())  # the gradients are orthogonal
    assert list(found.fixed) == ["kl"]
    assert found.fixed_ratio == pytest.approx(expected, rel=1e-5)
    assert dominates == ("the fixed losses (kl) dominate the tasks" in found.advice[0])
    assert dominates == any("At first, the gradient of kl was" in line for line in found.advice)
    if not dominates:
        assert "keep it" in found.advice[0]


def test_fixed_losses_without_weights_or_gradients_have_no_ratio() -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.UWO(["a", "b"], fixed={"kl": 1.0})
    for shared in (None, [w]):
        with cp.diagnose(balancer, shared=shared) as monitor:
            balancer.backward([w[0] * 2, w[1] * 3, None])
        assert not monitor.diagnosis.fixed_ratio
