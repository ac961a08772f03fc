"""BPGS against the equations of the paper."""

import math
from dataclasses import asdict, replace
from typing import Any

import mpmath
import pytest
import torch
from helpers import reference as ref
from torch import Tensor

import counterpoise as cp
from counterpoise.functional import bpgs, bpgs_calibrate, bpgs_chart, bpgs_weights, radius

SIZES = [1, 2, 3, 5, 8, 14]


def draw(tasks: int, seed: int, dtype: torch.dtype = torch.float64, decades: float = 2.0) -> tuple[Tensor, Tensor]:
    """Draw θ, and losses whose scales differ by a few decades."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(tasks, generator=generator, dtype=torch.float64)
    losses = 10 ** (decades * torch.randn(tasks, generator=generator, dtype=torch.float64))
    return theta.to(dtype), losses.to(dtype)


def build(options: ref.Options, tasks: int, dtype: torch.dtype, calibrate: bool = False) -> cp.BPGS:
    return cp.BPGS(tasks, calibrate=calibrate, **asdict(options)).to(dtype)


def run(balancer: cp.BPGS, theta: Tensor | None, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the value, the weights, and the gradients with respect to the losses and θ."""
    if theta is not None:
        with torch.no_grad():
            balancer.theta.copy_(theta)
    leaf = losses.clone().requires_grad_()
    value = balancer(leaf)
    value.backward()
    assert balancer.weights is not None
    assert leaf.grad is not None
    assert balancer.theta.grad is not None
    return value.detach(), balancer.weights, leaf.grad, balancer.theta.grad


def as_tensor(numbers: ref.Numbers) -> Tensor:
    return torch.tensor([float(n) for n in numbers], dtype=torch.float64)


CASES = [(options, tasks) for options in ref.ALL_VARIANTS for tasks in SIZES]
# Other numbers of tasks, cycling through the variants: their reference takes long.
CASES += [(ref.ALL_VARIANTS[tasks % 8], tasks) for tasks in (4, 6, 7, 9, 11, 18, 25, 27, 36, 45, 54, 63, 64)]


@pytest.mark.parametrize(("options", "tasks"), CASES, ids=lambda c: c if isinstance(c, int) else None)
def test_float64_matches_the_equations(options: ref.Options, tasks: int) -> None:
    theta, losses = draw(tasks, seed=tasks)
    value, weights, flow, gradient = run(build(options, tasks, torch.float64), theta, losses)
    t, x = ref.exact(theta.tolist()), ref.exact(losses.tolist())
    close: dict[str, Any] = {"rtol": 1e-11, "atol": 0.0}
    torch.testing.assert_close(weights, as_tensor(ref.weights(t, x, options)), **close)
    torch.testing.assert_close(flow, weights, rtol=0, atol=0)
    torch.testing.assert_close(value, as_tensor([ref.objective(t, x, options)])[0], **close)
    # The gradient contains the difference ½(1 − ωL), so its error is measured against the two terms.
    expected = as_tensor(ref.theta_gradient(t, x, options))
    assert torch.all((gradient - expected).abs() <= 1e-11 * (expected.abs() + gradient_scale(losses, options)))


def gradient_scale(losses: Tensor, options: ref.Options) -> float:
    """Return g_θ·ς̄·τ/2, the scale of a θ-gradient, or its equivalent for the stateless chart."""
    if options.chart == "stateless":
        return options.theta_gain * (options.s_max - options.s_min) / 4
    _, std, _ = ref.statistics([float(v) for v in losses], options, math)
    return float(options.theta_gain * std * ref.tau(len(losses), options, math) / 2)


@pytest.mark.parametrize("options", ref.ALL_VARIANTS, ids=lambda o: f"{o.chart}-{o.split}-{o.normalise}")
@pytest.mark.parametrize("tasks", [1, 2, 3, 14, 33])
def test_float32_matches_the_equations(options: ref.Options, tasks: int) -> None:
    theta, losses = draw(tasks, seed=100 + tasks, dtype=torch.float32, decades=0.7)
    value, weights, _, gradient = run(build(options, tasks, torch.float32), theta, losses)
    t, x = ref.exact(theta.tolist()), ref.exact(losses.tolist())
    bound = 1e-6 * (1 + max(abs(float(s)) for s in ref.log_variances(t, x, options, mpmath)))
    expected = as_tensor(ref.weights(t, x, options))
    assert weights.dtype == torch.float32
    assert torch.all((weights.double() - expected).abs() <= bound * expected)
    torch.testing.assert_close(value.double(), as_tensor([ref.objective(t, x, options)])[0], rtol=bound, atol=0)
    expected = as_tensor(ref.theta_gradient(t, x, options))
    assert torch.all((gradient.double() - expected).abs() <= bound * (expected.abs() + gradient_scale(losses, options)))


@pytest.mark.parametrize("chart", ["batch", "stateless"])
@pytest.mark.parametrize("tasks", [*SIZES, 64])
def test_first_batch_calibrates_theta(chart: str, tasks: int) -> None:
    options = replace(ref.Options(), chart=chart)
    _, losses = draw(tasks, seed=200 + tasks)
    balancer = build(options, tasks, torch.float64, calibrate=True)
    balancer(losses)
    expected = as_tensor(ref.calibrated(ref.exact(losses.tolist()), options))
    torch.testing.assert_close(balancer.theta.detach(), expected, rtol=1e-11, atol=1e-13)
    balancer(losses.flip(0))  # only the first batch counts
    torch.testing.assert_close(balancer.theta.detach(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("tasks", [*SIZES, 64])
def test_identities_right_after_calibration(tasks: int) -> None:
    """With s_i = log L_i, θ is stationary, the weights are ∝ 1/L, and the objective is the harmonic mean."""
    _, losses = draw(tasks, seed=300 + tasks)
    value, weights, _, gradient = run(cp.BPGS(tasks).double(), None, losses)
    inverse = 1 / losses
    torch.testing.assert_close(weights, inverse / inverse.sum(), rtol=1e-11, atol=0)
    torch.testing.assert_close(value, tasks / inverse.sum(), rtol=1e-11, atol=0)
    assert gradient.abs().max() <= 1e-11 * gradient_scale(losses, ref.Options())


@pytest.mark.parametrize("options", ref.ALL_VARIANTS, ids=lambda o: f"{o.chart}-{o.split}-{o.normalise}")
def test_absent_tasks_do_not_affect_the_present_ones(options: ref.Options) -> None:
    """Five tasks, two of them absent, are equivalent to three tasks with the radius of five."""
    theta, losses = draw(5, seed=77)
    present = [0, 2, 4]
    losses[1], losses[3] = torch.nan, torch.inf
    value, weights, flow, gradient = run(build(options, 5, torch.float64), theta, losses)
    wider = replace(options, margin=radius(5) - math.sqrt(len(present) - 1))
    expected = run(build(wider, 3, torch.float64), theta[present], losses[present])
    torch.testing.assert_close(
        (value, weights[present], flow[present], gradient[present]), expected, rtol=1e-12, atol=1e-12
    )
    for spread in (weights, flow, gradient):
        assert spread[1] == spread[3] == 0


def test_one_task_has_weight_one() -> None:
    for loss in (1e-12, 0.3, 5e6):
        value, weights, _, _ = run(cp.BPGS(1), None, torch.tensor([loss]))
        assert weights.tolist() == [1.0]
        assert value == torch.tensor(loss)


def test_two_tasks_are_calibrated_to_a_fixed_coordinate() -> None:
    """For T = 2, z = ±1 for all losses, so |z|/τ = 1/1.1."""
    for losses in ([1.0, 3.0], [1e-6, 1e6], [2.0, 1.99]):
        balancer = cp.BPGS(2).double()
        balancer(torch.tensor(losses, dtype=torch.float64))
        assert balancer.geometry is not None
        torch.testing.assert_close(balancer.geometry.z_over_tau.abs(), torch.full((2,), 1 / 1.1, dtype=torch.float64))


def test_no_calibration_gives_equal_weights() -> None:
    losses = torch.tensor([1e-3, 1.0, 1e3])
    for chart in ("batch", "stateless"):
        balancer = cp.BPGS(3, chart=chart, calibrate=False)
        balancer(losses)
        assert balancer.theta.tolist() == [0, 0, 0]
        torch.testing.assert_close(balancer.weights, torch.full((3,), 1 / 3))


@pytest.mark.parametrize("extreme", [30.0, 709.0, 800.0, 1e4])
@pytest.mark.parametrize("tasks", [2, 3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_variances_are_bounded_for_any_theta(tasks: int, extreme: float, dtype: torch.dtype) -> None:
    _, losses = draw(tasks, seed=400 + tasks, dtype=dtype)
    theta = torch.full((tasks,), extreme, dtype=dtype) * torch.tensor([1.0, -1.0], dtype=dtype).repeat(tasks)[:tasks]
    value, weights, flow, gradient = run(cp.BPGS(tasks, calibrate=False).to(dtype), theta, losses)
    assert all(torch.isfinite(v).all() for v in (value, weights, flow, gradient))
    at = bpgs_chart(theta, losses)
    reach = at.std * radius(tasks)
    assert torch.all((at.s - at.mu).abs() <= reach * (1 + 1e-12))
    assert torch.all(at.omega > 0)
    torch.testing.assert_close(weights.sum(), torch.ones((), dtype=dtype))


def test_only_the_logarithm_is_clamped() -> None:
    """Losses below ε_log are clamped in the statistics, but not in J_net and J_unc."""
    losses = torch.tensor([0.0, 1e-12, 1.0], dtype=torch.float64)
    value, weights, _, gradient = run(cp.BPGS(3, calibrate=False).double(), torch.zeros(3), losses)
    floored = losses.clamp_min(1e-8).log()
    at = bpgs_chart(torch.zeros(3, dtype=torch.float64), losses)
    torch.testing.assert_close(at.mu, floored.mean(-1, keepdim=True))
    torch.testing.assert_close(value, (weights * losses).sum())
    scale = 100.0 * at.std * radius(3) * 2 * 0.25
    torch.testing.assert_close(gradient, scale * 0.5 * (1 - at.omega * losses))


def test_equal_losses_use_the_lower_bound_of_the_deviation() -> None:
    balancer = cp.BPGS(3).double()
    balancer(torch.full((3,), 2.5, dtype=torch.float64))
    assert balancer.geometry is not None
    assert balancer.geometry.std.item() == 1e-4
    assert balancer.theta.abs().max() < 1e-9
    torch.testing.assert_close(balancer.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_calibration_with_a_negative_margin_stays_inside_the_interval() -> None:
    """A loss outside the smaller interval starts at its edge; all others start at s_i = log L_i."""
    losses = torch.tensor([1.0, 1.0, 1.0, 1.0, 1000.0], dtype=torch.float64)
    balancer = cp.BPGS(5, margin=-0.95).double()
    balancer(losses)
    chart = balancer.geometry
    assert chart is not None
    torch.testing.assert_close(chart.s[:4], losses[:4].log())
    assert 0.99 < chart.z_over_tau[4] < 1
    torch.testing.assert_close(chart.s[4], (chart.mu + 1.05 * chart.std * chart.z_over_tau[4])[0])


def cpu_kernel_step(theta: Tensor, losses: Tensor, calibrate: bool) -> tuple[cp.functional.Step, Tensor]:
    from counterpoise.kernels import bpgs_cpu

    theta_after, flags = theta.clone(), torch.zeros_like(theta, dtype=torch.bool)
    step, _ = bpgs_cpu.bpgs(
        losses, theta_after, flags, calibrate=calibrate, theta_gain=100.0, margin=0.1, eps_log=1e-8, eps_std=1e-4
    )
    return step, theta_after


def torch_step(theta: Tensor, losses: Tensor, calibrate: bool) -> tuple[cp.functional.Step, Tensor]:
    if calibrate:
        theta, _ = bpgs_calibrate(theta, losses, torch.zeros_like(theta, dtype=torch.bool))
    return bpgs(theta, losses), theta


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("tasks", [1, 2, 3, 14, 64])
def test_cpu_kernel_agrees_with_the_tensor_operations(tasks: int, dtype: torch.dtype, calibrate: bool) -> None:
    for seed in range(20):
        theta, losses = draw(tasks, seed=1000 * tasks + seed, dtype=dtype, decades=0.7)
        if seed % 2:  # absent tasks, zeros and saturated coordinates
            losses[seed % tasks] = [torch.nan, torch.inf, -torch.inf, 0.0][seed % 4]
            theta[-1] = 1e4 if dtype != torch.float16 else 100
        mine, theta_after = cpu_kernel_step(theta, losses, calibrate)
        reference, expected = torch_step(theta, losses, calibrate)
        exact = dtype == torch.float64
        close: dict[str, Any] = {"rtol": 1e-13, "atol": 1e-15} if exact else {"rtol": 3e-7, "atol": 1e-9}
        torch.testing.assert_close(mine.weights, reference.weights, **close)
        torch.testing.assert_close(mine.objective, reference.objective, **close)
        scale = gradient_scale(losses.nan_to_num(1, 1, 1), ref.Options())
        torch.testing.assert_close(mine.gradient, reference.gradient, rtol=close["rtol"], atol=close["rtol"] * scale)
        torch.testing.assert_close(theta_after, expected)


def test_weights_function_broadcasts() -> None:
    theta, losses = draw(4 * 5 * 3, seed=5)
    theta, losses = theta.view(4, 5, 3), losses.view(4, 5, 3)
    together = bpgs_weights(theta, losses)
    for i in range(4):
        for j in range(5):
            torch.testing.assert_close(together[i, j], bpgs_weights(theta[i, j], losses[i, j]), rtol=1e-14, atol=0)


def test_geometry_describes_the_last_step() -> None:
    balancer = cp.BPGS(3).double()
    assert balancer.geometry is None
    _, losses = draw(3, seed=9)
    balancer(losses)
    before = balancer.theta.detach().clone()
    with torch.no_grad():
        balancer.theta.add_(1)  # a later optimiser step must not change the result
    at = balancer.geometry
    assert at is not None
    torch.testing.assert_close(at.theta, before)
    torch.testing.assert_close(at.mu, losses.log().mean(-1, keepdim=True))
    torch.testing.assert_close(at.std, losses.log().std(-1, correction=0, keepdim=True))
    torch.testing.assert_close(at.s, losses.log())
    torch.testing.assert_close(at.omega, 1 / losses)
    torch.testing.assert_close(at.slope, before.sigmoid() * (1 - before.sigmoid()))
    torch.testing.assert_close(at.z_over_tau * radius(3), (at.s - at.mu) / at.std)
    torch.testing.assert_close(at.alpha, balancer.weights)


def test_geometry_does_not_change_with_the_losses_in_place() -> None:
    for tasks in (2, 600):  # the CPU kernel and the tensor operations
        balancer, losses = cp.BPGS(tasks), torch.full((tasks,), 3.0)
        balancer(losses)
        losses.mul_(100)
        assert balancer.geometry is not None
        assert balancer.geometry.mu.item() == pytest.approx(math.log(3.0))


def test_extreme_values_do_not_overflow() -> None:
    theta = torch.tensor([-900.0, -2000.0, 5.0, 1e4], dtype=torch.float64)
    losses = torch.tensor([1e-30, 1e38, 1.0, 1e30], dtype=torch.float64)
    for step in (bpgs(theta, losses), cpu_kernel_step(theta, losses, calibrate=False)[0]):
        assert all(part is not None and torch.isfinite(part).all() for part in step)


def test_theta_gain_scales_the_gradient_of_theta_only() -> None:
    theta, losses = draw(3, seed=11)
    low = run(build(replace(ref.Options(), theta_gain=1.0), 3, torch.float64), theta, losses)
    high = run(build(replace(ref.Options(), theta_gain=100.0), 3, torch.float64), theta, losses)
    torch.testing.assert_close(low[:3], high[:3], rtol=0, atol=0)
    torch.testing.assert_close(100 * low[3], high[3])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("theta_gain", math.nan),
        ("chart", "bathc"),
        ("margin", -1.5),
        ("margin", math.nan),
        ("eps_log", -1.0),
        ("eps_std", 0.0),
        ("s_min", 20.0),
    ],
)
def test_invalid_options_raise_errors_that_name_them(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        cp.BPGS(3, **{option: value})  # type: ignore[arg-type]
