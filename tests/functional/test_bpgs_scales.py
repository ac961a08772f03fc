"""BPGS on scales other than the losses, such as gradient norms."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from helpers import reference as ref
from torch import Tensor

from counterpoise.functional import bpgs, bpgs_calibrate, bpgs_chart, bpgs_weights, radius


def draw(tasks: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw θ, losses, and scales (such as gradient norms) that are unrelated to the losses."""
    generator = torch.Generator().manual_seed(seed)
    theta, losses, scales = torch.randn(3, tasks, generator=generator, dtype=torch.float64)
    return theta, 10 ** (2 * losses), 10 ** (2 * scales)


def test_losses_as_scales_give_the_step_without_scales() -> None:
    """Only the weights differ without a split: scales are constants for the network."""
    theta, losses, _ = draw(5, seed=20)
    losses[3] = torch.nan
    for options in ref.ALL_VARIANTS:
        plain = bpgs(theta, losses, **asdict(options))
        scaled = bpgs(theta, losses, scales=losses, **asdict(options))
        assert torch.equal(scaled.objective, plain.objective)
        assert scaled.gradient is not None
        assert plain.gradient is not None
        assert torch.equal(scaled.gradient, plain.gradient)
        if options.split:
            assert torch.equal(scaled.weights, plain.weights)
        else:
            joint = bpgs(theta, losses, **asdict(replace(options, split=True)))
            assert torch.equal(scaled.weights, joint.weights)


@pytest.mark.parametrize("chart", ["batch", "stateless"])
@pytest.mark.parametrize("tasks", [1, 2, 5, 14])
def test_scales_determine_the_chart_and_the_losses_the_objective(tasks: int, chart: str) -> None:
    theta, losses, scales = draw(tasks, seed=21)
    step = bpgs(theta, losses, scales=scales, chart=chart)  # type: ignore[arg-type]
    alpha = bpgs_chart(theta, scales, chart=chart).alpha  # type: ignore[arg-type]
    assert torch.equal(step.weights, alpha)
    assert torch.equal(bpgs_weights(theta, losses, scales=scales, chart=chart), alpha)  # type: ignore[arg-type]
    torch.testing.assert_close(step.objective, alpha @ losses)


def test_log_variances_are_bounded_by_the_scales() -> None:
    _, _, scales = draw(5, seed=22)
    for theta in (torch.full((5,), 1e4), torch.full((5,), -1e4)):
        at = bpgs_chart(theta, scales)
        mean, std = scales.log().mean(), scales.log().std(correction=0)
        assert torch.all((at.s - mean).abs() <= std * radius(5) * (1 + 1e-12))


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 14, 64])
def test_calibration_on_scales(tasks: int) -> None:
    """With s_i = log n_i, θ is stationary and the weights are ∝ 1/n."""
    theta, losses, scales = draw(tasks, seed=500 + tasks)
    theta, _ = bpgs_calibrate(theta, scales, torch.zeros(tasks, dtype=torch.bool))
    torch.testing.assert_close(bpgs_chart(theta, scales).s, scales.log(), rtol=1e-10, atol=1e-10)
    step = bpgs(theta, losses, scales=scales)
    torch.testing.assert_close(step.weights, (1 / scales) / (1 / scales).sum(), rtol=1e-10, atol=0)
    assert step.gradient is not None
    assert step.gradient.abs().max() <= 1e-9 * 100 * scales.log().std(correction=0).clamp_min(1e-4) * radius(tasks)


@pytest.mark.parametrize("factor", [1e-4, 3.0, 1e4])
def test_rescaling_a_loss_and_its_scale_keeps_its_contribution(factor: float) -> None:
    """Multiplying a loss multiplies its gradient norm; after calibration, α_i L_i keeps its share of Σ α_j L_j."""
    theta, losses, scales = draw(4, seed=23)

    def contributions(losses: Tensor, scales: Tensor) -> Tensor:
        start, _ = bpgs_calibrate(theta, scales, torch.zeros(4, dtype=torch.bool))
        parts = bpgs(start, losses, scales=scales).weights * losses
        return parts / parts.sum()

    expected = contributions(losses, scales)
    for task in range(4):
        factors = torch.ones(4, dtype=torch.float64)
        factors[task] = factor
        torch.testing.assert_close(contributions(losses * factors, scales * factors), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("options", ref.ALL_VARIANTS, ids=lambda o: f"{o.chart}-{o.split}-{o.normalise}")
def test_theta_gradient_with_scales_matches_finite_differences(options: ref.Options) -> None:
    """With a split, θ minimises J_unc = Σ ½ ω_i n_i + ½ s_i; without it, J_net + J_unc."""
    theta, losses, scales = draw(4, seed=24)
    chart = {"chart": options.chart}

    def minimised(theta: Tensor) -> Tensor:
        at = bpgs_chart(theta, scales, **chart)  # type: ignore[arg-type]
        j_unc = 0.5 * (at.omega * scales + at.s).sum()
        return j_unc if options.split else j_unc + (at.alpha if options.normalise else at.omega) @ losses

    step = bpgs(theta, losses, scales=scales, **asdict(options))
    assert step.gradient is not None
    if not options.split:
        torch.testing.assert_close(step.objective, minimised(theta))
    rounding = 1e-9 * options.theta_gain * minimised(theta).abs().item()
    for task in range(4):
        h = torch.zeros(4, dtype=torch.float64)
        h[task] = 1e-5
        slope = (minimised(theta + h) - minimised(theta - h)) / 2e-5
        torch.testing.assert_close(step.gradient[task], options.theta_gain * slope, rtol=1e-5, atol=rounding)


def test_tasks_without_a_loss_or_a_scale_are_absent() -> None:
    theta, losses, scales = draw(5, seed=25)
    losses[1], scales[3] = torch.nan, torch.nan
    step, present = bpgs(theta, losses, scales=scales), [0, 2, 4]
    margin = radius(5) - math.sqrt(len(present) - 1)
    alone = bpgs(theta[present], losses[present], scales=scales[present], margin=margin)
    assert step.gradient is not None
    assert alone.gradient is not None
    torch.testing.assert_close(
        (step.objective, step.weights[present], step.gradient[present]),
        (alone.objective, alone.weights, alone.gradient),
    )
    for part in (step.weights, step.gradient):
        assert part[1] == part[3] == 0


def test_extreme_scales_give_finite_results() -> None:
    values = torch.tensor([0.0, 1e-38, 1.0, 1e38])
    for scales in (values, values.flip(0)):
        for theta in (torch.zeros(4), torch.full((4,), -1e4)):
            step = bpgs(theta, values, scales=scales)
            assert all(part is not None and torch.isfinite(part).all() for part in step)


def test_scales_broadcast() -> None:
    theta, losses, scales = (part.view(4, 5, 3) for part in draw(60, seed=26))
    together = bpgs(theta, losses, scales=scales)
    for i in range(4):
        for j in range(5):
            one = bpgs(theta[i, j], losses[i, j], scales=scales[i, j])
            torch.testing.assert_close(tuple(part[i, j] for part in together if part is not None), tuple(one))
