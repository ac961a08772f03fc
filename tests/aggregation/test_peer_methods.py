"""ConFIG, DCGD, DualProj, PCD, PIVRG, MoDo, CR-MOGM, Krum and the trimmed mean over several steps."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.trunk_and_heads import TASKS, Net, batch
from torch import Tensor

import counterpoise as cp
from counterpoise import functional as f

NAMES = ["config", "cr-mogm", "dcgd", "dualproj", "krum", "m-config", "modo", "pcd", "pivrg", "trimmed-mean"]
STATEFUL = ["cr-mogm", "m-config", "modo", "pcd", "pivrg"]
SIZE = 7


def jacobians(count: int, tasks: int = 3, *batch_shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(0.5, 3.0, tasks, dtype=torch.float64).unsqueeze(-1)
    shape = (count, *batch_shape, tasks, SIZE)
    return list(scales * torch.randn(shape, generator=generator, dtype=torch.float64))


def step(balancer: cp.Balancer, rows: Tensor, absent: Tensor | None = None) -> Tensor:
    """Run one step on linear losses with the given gradients, and return the direction."""
    w = torch.ones(*rows.shape[:-2], SIZE, dtype=torch.float64, requires_grad=True)
    losses = (rows @ w.unsqueeze(-1)).squeeze(-1) + 10.0
    balancer.backward(losses if absent is None else torch.where(absent, torch.nan, losses), shared=[w])
    assert w.grad is not None
    return w.grad


def state(balancer: cp.Balancer) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in balancer.state_dict().items() if isinstance(value, Tensor)}


FUNCTIONS: list[tuple[str, dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ("config", {}, f.config_weights),
    ("config", {"importance": [1, 2, 0.5, 3]}, lambda g: f.config_weights(g, preference=torch.tensor([1, 2, 0.5, 3]))),
    ("dcgd", {}, lambda g: f.dcgd_weights(g, 0)),
    ("dcgd", {"residual": "c", "kind": "projection"}, lambda g: f.dcgd_weights(g, 2, kind="projection")),
    ("dcgd", {"residual": -1, "kind": "average"}, lambda g: f.dcgd_weights(g, 3, kind="average")),
    ("dualproj", {}, f.dualproj_weights),
    ("dualproj", {"importance": {"b": 3.0}}, lambda g: f.dualproj_weights(g, preference=torch.tensor([1.0, 3, 1, 1]))),
    ("krum", {"byzantine": 1, "selected": 2}, lambda g: f.krum_weights(g, byzantine=1, selected=2)),
    ("krum", {}, lambda g: f.krum_weights(g, byzantine=0, selected=4)),
]


@pytest.mark.parametrize(("name", "options", "function"), FUNCTIONS)
def test_methods_without_state_apply_their_function(
    name: str, options: dict[str, Any], function: Callable[[Tensor], Tensor]
) -> None:
    balancer = cp.make(name, ["a", "b", "c", "d"], **options)
    for rows in jacobians(3, 4):
        direction = step(balancer, rows)
        weights = function(rows @ rows.mT)
        torch.testing.assert_close(balancer.weights, weights)
        torch.testing.assert_close(direction, weights @ rows)


def test_pcd_divides_by_running_norms() -> None:
    balancer = cp.PCD(TASKS, primary="b", tau=0.3, beta=0.9).double()
    sums, total = torch.zeros(3, dtype=torch.float64), 0.0
    for rows in jacobians(5):
        sums, total = 0.9 * sums + 0.1 * rows.square().sum(1), 0.9 * total + 0.1
        direction = step(balancer, rows)
        torch.testing.assert_close(balancer.squared_norms, sums / total)
        weights = f.pcd_weights(rows @ rows.mT, sums / total, tau=0.3, primary=1)
        torch.testing.assert_close(direction, weights @ rows)
    torch.testing.assert_close(direction.norm(), rows[1].norm())


def test_pcd_uses_the_mean_gradient_without_its_primary_task() -> None:
    balancer = cp.PCD(TASKS).double()
    (rows,) = jacobians(1)
    direction = step(balancer, rows, torch.tensor([True, False, False]))
    torch.testing.assert_close(direction, rows[1:].mean(0))
    assert balancer.steps.tolist() == [0, 1, 1]


@pytest.mark.parametrize("baselines", [None, [4.0, 10.0, 30.0]])
def test_pivrg_prefers_tasks_far_above_their_baseline(baselines: list[float] | None) -> None:
    balancer = cp.PIVRG(TASKS, baselines=baselines, decay=0.8).double()
    first = mean = torch.tensor(0.0)
    for count, rows in enumerate(jacobians(4)):
        losses = rows.sum(1) + 10.0
        mean = losses if count == 0 else 0.8 * mean + 0.2 * losses
        first = losses if count == 0 else first
        reference = first if baselines is None else torch.tensor(baselines, dtype=torch.float64)
        direction = step(balancer, rows)
        weights = f.pivrg_weights(rows @ rows.mT, 100 * (mean / reference - 1))
        torch.testing.assert_close(direction, weights @ rows)
    balancer.reset()
    assert balancer.baselines.isnan().all() == (baselines is None)


@pytest.mark.parametrize("in_turn", [True, False])
def test_m_config_combines_momenta(in_turn: bool) -> None:
    balancer = cp.MConFIG(TASKS, beta=0.7).double()
    momenta, counts = torch.zeros(3, SIZE, dtype=torch.float64), torch.zeros(3)
    for count, rows in enumerate(jacobians(9)):
        present = torch.arange(3) == count % 3 if in_turn else torch.ones(3, dtype=torch.bool)
        direction = step(balancer, rows, ~present)
        momenta = torch.where(present.unsqueeze(1), 0.7 * momenta + 0.3 * rows, momenta)
        counts += present
        if counts.all():
            corrected = momenta / (1 - 0.7 ** counts.double()).unsqueeze(1)
            torch.testing.assert_close(direction, torchjd.ConFIG()(corrected))
    assert balancer.weights is None


def test_m_config_on_a_batch_without_labels_does_nothing() -> None:
    balancer = cp.MConFIG(TASKS, batch_shape=2).double()
    rows = torch.stack(jacobians(2))
    step(balancer, rows)
    before = state(balancer)
    direction = step(balancer, rows, torch.tensor([[True] * 3, [False] * 3]))
    assert not direction[0].any()
    assert direction[1].any()
    for key, value in state(balancer).items():
        parts = value[:, 0] if "memory" in key else value[0]
        torch.testing.assert_close(parts, before[key][:, 0] if "memory" in key else before[key][0])


def test_modo_pairs_the_gradients_of_successive_steps() -> None:
    balancer, reference = cp.MoDo(TASKS, gamma=0.02, rho=0.3).double(), torchjd.MoDoWeighting(gamma=0.02, rho=0.3)
    last: Tensor | None = None
    for rows in jacobians(6):
        direction = step(balancer, rows)
        weights = torch.full((3,), 1 / 3, dtype=torch.float64) if last is None else reference(rows @ last.mT)
        torch.testing.assert_close(balancer.weights, weights)
        torch.testing.assert_close(direction, weights @ rows)
        last = rows


def test_modo_keeps_the_weight_and_the_gradient_of_an_absent_task() -> None:
    balancer = cp.MoDo(TASKS, gamma=0.02).double()
    first, second, third = jacobians(3)
    step(balancer, first)
    step(balancer, second, torch.tensor([False, True, False]))
    torch.testing.assert_close(balancer.lam[1].item(), 1 / 3)
    assert balancer.weights is not None
    torch.testing.assert_close(balancer.weights, balancer.lam * torch.tensor([1, 0, 1]) / (2 / 3))
    lam = balancer.lam.clone()
    step(balancer, third)
    last = torch.stack([second[0], first[1], second[2]])
    torch.testing.assert_close(balancer.lam, f.modo_weights(lam, third @ last.mT, gamma=0.02)[0])


@pytest.mark.parametrize("method", ["upgrad", "cagrad", "sdmgrad", "config"])
def test_cr_mogm_smooths_the_weights_of_any_method(method: str) -> None:
    balancer, alone = cp.CRMOGM(TASKS, method=method, alpha=0.6).double(), cp.make(method, TASKS).double()
    smoothed: Tensor | None = None
    for rows in jacobians(5):
        direction = step(balancer, rows)
        step(alone, rows)
        assert alone.weights is not None
        smoothed = alone.weights if smoothed is None else 0.6 * smoothed + 0.4 * alone.weights
        torch.testing.assert_close(balancer.weights, smoothed)
        torch.testing.assert_close(direction, smoothed @ rows)


def test_cr_mogm_agrees_with_torchjd() -> None:
    balancer = cp.CRMOGM(TASKS, method=cp.MGDA(TASKS)).double()
    reference = torchjd.CRMOGMWeighting(torchjd.MGDAWeighting(epsilon=1e-6, max_iters=1000))
    for rows in jacobians(5):
        step(balancer, rows)
        torch.testing.assert_close(balancer.weights, reference(rows @ rows.mT), rtol=1e-3, atol=1e-3)


def test_cr_mogm_keeps_the_weight_of_an_absent_task() -> None:
    balancer = cp.CRMOGM(TASKS).double()
    first, second = jacobians(2)
    step(balancer, first)
    lam = balancer.lam.clone()
    step(balancer, second, torch.tensor([False, True, False]))
    assert balancer.weights is not None
    assert balancer.weights[1] == 0
    assert balancer.lam[1] == lam[1]
    assert (balancer.lam != lam).tolist() == [True, False, True]


def test_cr_mogm_applies_importance_to_the_smoothed_weights() -> None:
    plain = cp.CRMOGM(TASKS, method="mgda")
    outside = cp.CRMOGM(TASKS, method="mgda", importance=[1.0, 2.0, 3.0])
    inside = cp.CRMOGM(TASKS, method=cp.MGDA(TASKS, importance=[1.0, 2.0, 3.0]))
    for rows in jacobians(3):
        for balancer in (plain, outside, inside):
            step(balancer.double(), rows)
        assert plain.weights is not None
        for balancer in (outside, inside):
            torch.testing.assert_close(balancer.weights, plain.weights * torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("moco", TypeError, "method is MoCo, expected a gradient-space method with weights from the Gram matrix"),
        ("gradnorm", TypeError, "method is GradNorm"),
        ("bpgs", TypeError, "method is BPGS"),
        ("imtl", ValueError, "method has weighting= or fixed=: pass them to CRMOGM"),
        (cp.PCGrad(2), ValueError, r"method balances losses of shape \(2,\), expected \(3,\)"),
        ("pcgad", ValueError, "did you mean 'pcgrad'"),
    ],
)
def test_cr_mogm_rejects_methods_that_it_cannot_wrap(method: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cp.CRMOGM(TASKS, method=method)


@pytest.mark.parametrize("trim", [0, 1, 2, 9])
def test_trimmed_mean_agrees_with_torchjd(trim: int) -> None:
    balancer = cp.TrimmedMean(5, trim=trim)
    for rows in jacobians(2, 5):
        torch.testing.assert_close(step(balancer, rows), torchjd.TrimmedMean(trim_number=min(trim, 2))(rows))
    assert balancer.weights is None


def test_trimmed_mean_multiplies_the_remaining_values_by_the_importance() -> None:
    importance = torch.tensor([1.0, 5.0, 2.0, 0.5], dtype=torch.float64)
    balancer = cp.TrimmedMean(4, importance=importance.tolist())
    (rows,) = jacobians(1, 4)
    values, order = rows.sort(0)
    torch.testing.assert_close(step(balancer, rows), (values * importance[order])[1:3].mean(0))
    present = [0, 2, 3]
    values, order = rows[present].sort(0)
    direction = step(balancer, rows, torch.tensor([False, True, False, False]))
    torch.testing.assert_close(direction, (values * importance[present][order])[1])


def test_krum_ignores_an_outlying_gradient() -> None:
    (rows,) = jacobians(1, 1)
    near = rows + 0.01 * torch.stack(jacobians(5, 1)).squeeze(1)
    balancer = cp.Krum(6)
    step(balancer, torch.cat([near, -100 * rows]))
    assert balancer.weights is not None
    assert balancer.byzantine == 1
    assert balancer.weights.tolist() == pytest.approx([0.2] * 5 + [0.0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cp.DCGD(TASKS, residual="d"), "DCGD: residual is 'd', expected one of 'a', 'b', 'c', or its index"),
        (lambda: cp.DCGD(TASKS, residual=3), "residual is 3"),
        (lambda: cp.make("dcgd", TASKS, kind="middle"), "kind is 'middle', expected one of 'center'"),
        (lambda: cp.PCD(TASKS, primary="d"), "primary is 'd'"),
        (lambda: cp.PCD(TASKS, tau=2.0), "PCD: tau is 2.0"),
        (lambda: cp.PIVRG(TASKS, bound=1.0), "PIVRG: bound is 1.0"),
        (lambda: cp.MConFIG(TASKS, beta=1.0), "beta is 1.0"),
        (lambda: cp.MoDo(TASKS, gamma=0.0), "gamma is 0.0, expected a positive number"),
        (lambda: cp.CRMOGM(TASKS, alpha=1.5), "alpha is 1.5"),
        (lambda: cp.Krum(TASKS, byzantine=1), r"byzantine is 1, expected an integer in \[0, 0\]"),
        (lambda: cp.Krum(TASKS, selected=4), r"selected is 4, expected an integer in \[1, 3\]"),
        (lambda: cp.TrimmedMean(TASKS, trim=-1), "trim is -1"),
    ],
)
def test_invalid_options_are_refused(build: Callable[[], cp.Balancer], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", NAMES)
def test_replicas_agree_with_single_runs(name: str) -> None:
    """A task is absent from one replica only."""
    together = cp.make(name, TASKS, batch_shape=2).double()
    alone = [cp.make(name, TASKS).double() for _ in range(2)]
    absent = torch.tensor([[False, False, False], [False, True, False]])
    for count, rows in enumerate(jacobians(4, 3, 2)):
        lost = absent if count == 2 else torch.zeros_like(absent)
        direction = step(together, rows, lost)
        for replica, balancer in enumerate(alone):
            torch.testing.assert_close(direction[replica], step(balancer, rows[replica], lost[replica]))
            if balancer.weights is not None:
                assert together.weights is not None
                torch.testing.assert_close(together.weights[replica], balancer.weights)


@pytest.mark.parametrize("name", STATEFUL)
def test_state_resumes_from_a_checkpoint_and_resets(name: str) -> None:
    balancer, resumed = (cp.make(name, TASKS).double() for _ in range(2))
    start = state(balancer)
    *first, last = jacobians(4)
    begun = [step(balancer, rows) for rows in first]
    file = io.BytesIO()
    torch.save(balancer.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(step(balancer, last), step(resumed, last))
    for key, value in state(balancer).items():
        torch.testing.assert_close(value, state(resumed)[key], rtol=0, atol=0, equal_nan=True)
    balancer.reset()
    torch.testing.assert_close(state(balancer), start, rtol=1e-6, atol=1e-6, equal_nan=True)
    for rows, expected in zip(first, begun, strict=True):
        torch.testing.assert_close(step(balancer, rows), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", STATEFUL)
def test_evaluation_and_overflow_do_not_change_the_state(name: str) -> None:
    balancer = cp.make(name, TASKS).double()
    first, second = jacobians(2)
    step(balancer, first)
    before = state(balancer)
    balancer.eval()
    step(balancer, second)
    torch.testing.assert_close(state(balancer), before, rtol=0, atol=0, equal_nan=True)
    balancer.train()
    net = Net()
    losses, z = net.losses(*batch())
    balancer.reset()
    balancer.backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    before = state(balancer)
    net.zero_grad()
    z.register_hook(lambda grad: grad * torch.inf)
    balancer.backward(losses, shared=net.trunk.parameters(), scaler=torch.amp.GradScaler("cpu"))
    assert any(p.grad is not None and not p.grad.isfinite().all() for p in net.trunk.parameters())
    torch.testing.assert_close(state(balancer), before, rtol=0, atol=0, equal_nan=True)
