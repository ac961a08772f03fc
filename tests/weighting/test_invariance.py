"""Proposition 1 of the BPGS paper and bounds of its log-variances, tested with hypothesis."""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.functional import bpgs_calibrate, bpgs_chart, bpgs_weights, statistics

log_losses = st.lists(st.floats(-5, 5), min_size=2, max_size=16)
log_factors = st.floats(-6, 6)


def losses_of(log10: list[float]) -> torch.Tensor:
    return 10 ** torch.tensor(log10, dtype=torch.float64)


def non_degenerate(losses: torch.Tensor) -> bool:
    """Return whether the proposition applies: no loss and no deviation is at its lower bound."""
    return bool((losses > 1e-8).all()) and bool(losses.log().std(correction=0) > 1e-4)


@given(log_losses, log_factors, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_weights_are_invariant_to_a_common_factor(log10: list[float], log_factor: float, seed: int) -> None:
    losses = losses_of(log10)
    scaled = losses * 10**log_factor
    assume(non_degenerate(losses) and non_degenerate(scaled))
    theta = 3 * torch.randn(len(log10), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(bpgs_weights(theta, scaled), bpgs_weights(theta, losses), rtol=1e-11, atol=1e-300)


@given(log_losses, log_factors)
@settings(max_examples=100, deadline=None)
def test_calibration_is_invariant_to_a_common_factor(log10: list[float], log_factor: float) -> None:
    losses = losses_of(log10)
    scaled = losses * 10**log_factor
    assume(non_degenerate(losses) and non_degenerate(scaled))
    fresh = torch.zeros(len(log10), dtype=torch.bool)
    start, _ = bpgs_calibrate(torch.zeros(len(log10), dtype=torch.float64), losses, fresh)
    moved, _ = bpgs_calibrate(torch.zeros(len(log10), dtype=torch.float64), scaled, fresh)
    # The rounding error of log L is multiplied by 1/ς̄ in z, and by at most 1e4 in the inverse sigmoid.
    std = statistics(losses)[1].item()
    slope = (start.sigmoid() * (1 - start.sigmoid())).min().item()
    largest_log = max(losses.log().abs().max().item(), scaled.log().abs().max().item(), 1.0)
    bound = 64 * torch.finfo(torch.float64).eps * largest_log / (std * slope)
    assert (start - moved).abs().max().item() <= bound


@given(st.floats(1e-3, 1e3), st.integers(2, 16), log_factors)
@settings(max_examples=100, deadline=None)
def test_equal_losses_get_equal_weights_at_any_scale(loss: float, tasks: int, log_factor: float) -> None:
    balancer = cp.BPGS(tasks).double()
    balancer(torch.full((tasks,), loss * 10**log_factor, dtype=torch.float64))
    torch.testing.assert_close(balancer.weights, torch.full((tasks,), 1 / tasks, dtype=torch.float64))


@given(st.lists(st.floats(0, 1e-8), min_size=2, max_size=16))
@settings(max_examples=100, deadline=None)
def test_losses_below_the_lower_bound_get_equal_weights(values: list[float]) -> None:
    balancer = cp.BPGS(len(values)).double()
    balancer(torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(balancer.weights, torch.full((len(values),), 1 / len(values), dtype=torch.float64))
    assert balancer.geometry is not None
    assert math.isclose(balancer.geometry.mu.item(), math.log(1e-8), rel_tol=1e-14)


@given(st.lists(st.floats(-300, 300), min_size=2, max_size=64))
@settings(max_examples=100, deadline=None)
def test_standardised_log_losses_are_bounded(logs: list[float]) -> None:
    """|z| ≤ √(T − 1), which motivates τ_T; a single large loss attains the bound."""
    values = torch.tensor(logs, dtype=torch.float64)
    deviation = values.std(correction=0)
    assume(deviation > 1e-3)
    z = (values - values.mean()) / deviation
    assert z.abs().max() <= math.sqrt(len(logs) - 1) * (1 + 1e-9)


def test_single_large_loss_attains_the_bound() -> None:
    for tasks in (2, 3, 14, 64):
        losses = torch.ones(tasks, dtype=torch.float64)
        losses[0] = 1e5
        _, std, centred = statistics(losses)
        torch.testing.assert_close(centred[0] / std[0], torch.tensor(math.sqrt(tasks - 1), dtype=torch.float64))


@given(log_losses, st.floats(-1e4, 1e4), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_log_variances_stay_in_their_interval(log10: list[float], extreme: float, seed: int) -> None:
    losses = losses_of(log10)
    theta = extreme * torch.rand(len(log10), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at = bpgs_chart(theta, losses)
    reach = at.std * (math.sqrt(len(log10) - 1) + 0.1)
    rounding = 4 * torch.finfo(torch.float64).eps * (at.mu.abs() + reach)
    assert torch.all((at.s - at.mu).abs() <= reach + rounding)
    assert torch.all((at.omega > 0) & torch.isfinite(at.omega))
