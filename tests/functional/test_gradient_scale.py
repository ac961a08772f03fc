"""Gradient normalisation, learning-rate annealing and NTK weights against their equations."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from counterpoise.functional import (
    LRAForm,
    gradient_normalise_weights,
    gradnorm_proxy_weights,
    lra_weights,
    ntk_trace,
    ntk_weights,
    update_log_norms,
    weighted_sum,
)

NAN = math.nan
EXTREMES = torch.tensor([0.0, 1e-38, 1.0, 1e38])


def draw(*shape: int, seed: int = 0, decades: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (decades * torch.randn(*shape, generator=generator, dtype=torch.float64))


# Running mean of the log-norms


def test_first_norm_starts_the_mean() -> None:
    norms = draw(6, 3, seed=1)
    log = torch.full((3,), NAN, dtype=torch.float64)
    expected = norms[0].log()
    for step, row in enumerate(norms):
        log = update_log_norms(log, row, beta=0.7)
        expected = expected if step == 0 else 0.7 * expected + 0.3 * row.log()
        torch.testing.assert_close(log, expected)


def test_absent_tasks_and_zero_gradients_keep_their_mean() -> None:
    log = torch.tensor([1.0, 2.0, 3.0, NAN, NAN])
    after = update_log_norms(log, torch.tensor([NAN, 0.0, torch.inf, 0.0, 5.0]))
    torch.testing.assert_close(after, torch.tensor([1.0, 2.0, 3.0, NAN, math.log(5.0)]), equal_nan=True)


def test_mean_of_extreme_norms_is_finite() -> None:
    log = torch.zeros(4)
    for _ in range(3):
        log = update_log_norms(log, EXTREMES)
    assert torch.isfinite(log).all()
    assert log.dtype == torch.float32


# Gradient normalisation


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("with_shares", [False, True])
def test_normalised_weights_match_their_equation(exponent: float, with_shares: bool) -> None:
    for tasks in (1, 2, 3, 14):
        norms = draw(tasks, seed=tasks).numpy()
        shares = draw(tasks, seed=50 + tasks, decades=0.3) if with_shares else None
        expected = (norms.mean() / norms) ** exponent * (1.0 if shares is None else shares.numpy())
        ours = gradient_normalise_weights(torch.from_numpy(norms).log(), exponent=exponent, shares=shares)
        np.testing.assert_allclose(ours, expected * tasks / expected.sum(), rtol=1e-10)


def test_exponent_one_gives_every_task_its_share_of_the_gradient() -> None:
    norms, shares = draw(4, seed=2), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    contributions = gradient_normalise_weights(norms.log(), shares=shares) * norms
    torch.testing.assert_close(contributions / contributions.sum(), shares / 10)


def test_exponent_one_is_invariant_to_the_scale_of_a_loss() -> None:
    """If loss 1 is multiplied by c, so is its norm, and w_1 L_1 does not change relative to the other w_i L_i."""
    norms, losses = draw(3, seed=3), draw(3, seed=4)
    expected = gradient_normalise_weights(norms.log()) * losses
    for c in (1e-6, 3.0, 1e6):
        factors = torch.tensor([1.0, c, 1.0], dtype=torch.float64)
        scaled = gradient_normalise_weights((norms * factors).log()) * losses * factors
        torch.testing.assert_close(scaled / scaled.sum(), expected / expected.sum())


def test_exponent_two_is_gradnorm_proxy() -> None:
    norms = draw(5, seed=5, decades=0.5)
    expected = gradnorm_proxy_weights(norms.square().diag())
    torch.testing.assert_close(gradient_normalise_weights(norms.log(), exponent=2.0), expected)


def test_task_without_a_known_norm_gets_its_share() -> None:
    log = torch.tensor([0.0, NAN, math.log(3.0), -torch.inf])
    torch.testing.assert_close(gradient_normalise_weights(log), torch.tensor([1.5, 1.0, 0.5, 1.0]))
    weights = gradient_normalise_weights(log, shares=torch.tensor([1.0, 2.0, 1.0, 0.0]))
    torch.testing.assert_close(weights, torch.tensor([1.5, 2.0, 0.5, 0.0]))
    torch.testing.assert_close(gradient_normalise_weights(torch.full((3,), NAN)), torch.ones(3))
    assert weighted_sum(weights, torch.tensor([1.0, NAN, 1.0, 1.0])).weights[1] == 0


def test_task_without_a_share_gets_weight_zero() -> None:
    weights = gradient_normalise_weights(draw(3).log(), shares=torch.tensor([1.0, 0.0, 1.0]))
    assert weights[1] == 0
    torch.testing.assert_close(weights.sum().item(), 3.0)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_extreme_norms_give_finite_weights(exponent: float) -> None:
    for norms in (EXTREMES, EXTREMES.flip(0), torch.zeros(3), torch.full((3,), 1e38), torch.full((3,), torch.inf)):
        weights = gradient_normalise_weights(norms.log(), exponent=exponent)
        assert torch.isfinite(weights).all()
        torch.testing.assert_close(weights.sum().item(), float(len(norms)))


# Learning-rate annealing


def test_lra_matches_its_equation() -> None:
    previous, means, largest = draw(3, seed=6, decades=0.5), draw(3, seed=7), draw(1, seed=8)[0]
    targets = {
        "max-mean": largest / means,
        "max-weighted-mean": largest / (previous * means),
        "mean-mean": means[1] / means,
    }
    assert set(targets) == set(get_args(LRAForm))
    for form, target in targets.items():
        expected = 0.7 * previous + 0.3 * target
        expected[1] = 1.0
        ours = lra_weights(previous, largest, means, reference=1, alpha=0.3, form=form)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        lra_weights(previous, None, means, reference=-2, form="mean-mean"),
        lra_weights(previous, largest, means, reference=1, form="mean-mean"),
    )


def test_lra_settles_at_the_ratio_or_at_its_root() -> None:
    means, largest = torch.tensor([1.0, 1e-4]), torch.tensor(9.0)
    limits = {"max-mean": 9e4, "max-weighted-mean": 300.0, "mean-mean": 1e4}
    for form, limit in limits.items():
        weights = torch.ones(2)
        for _ in range(400):
            weights = lra_weights(weights, largest, means, reference=0, form=form)  # type: ignore[arg-type]
        torch.testing.assert_close(weights, torch.tensor([1.0, limit]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("form", get_args(LRAForm))
def test_lra_absent_tasks_and_zero_gradients_keep_their_weight(form: LRAForm) -> None:
    previous = torch.tensor([1.0, 2.0, 3.0, 4.0])
    means = torch.tensor([1.0, NAN, 0.0, 0.5])
    ours = lra_weights(previous, torch.tensor(3.0), means, reference=0, form=form)
    assert ours[:3].tolist() == [1.0, 2.0, 3.0]
    assert ours[3] != 4.0
    means = torch.tensor([NAN, 1.0, 1.0, 1.0])
    assert lra_weights(previous, torch.tensor(NAN), means, reference=0, form=form).tolist() == previous.tolist()


@pytest.mark.parametrize("form", get_args(LRAForm))
def test_lra_extreme_gradients_give_finite_weights(form: LRAForm) -> None:
    weights = torch.ones(4)
    for largest, means in itertools.product(EXTREMES, (EXTREMES, EXTREMES.flip(0), torch.zeros(4))):
        weights = lra_weights(weights, largest, means, reference=2, form=form)
        assert torch.isfinite(weights).all()
        assert weights[2] == 1


def test_lra_names_invalid_arguments() -> None:
    ones = torch.ones(2)
    with pytest.raises(ValueError, match="form is 'max'"):
        lra_weights(ones, ones[0], ones, reference=0, form="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ref_max is None"):
        lra_weights(ones, None, ones, reference=0)


# NTK weights


def test_ntk_weights_match_their_equation() -> None:
    traces = draw(5, seed=9)
    torch.testing.assert_close(ntk_weights(traces), traces.sum() / traces)
    torch.testing.assert_close(ntk_weights(1e9 * traces), ntk_weights(traces))


def test_ntk_absent_tasks_get_weight_zero() -> None:
    traces = torch.tensor([1.0, NAN, 3.0])
    torch.testing.assert_close(ntk_weights(traces), torch.tensor([4.0, 0.0, 4 / 3]))
    assert ntk_weights(torch.full((2,), NAN)).tolist() == [0.0, 0.0]


def test_ntk_extreme_traces_give_finite_weights() -> None:
    for traces in (EXTREMES, EXTREMES[:2], torch.zeros(3)):
        weights = ntk_weights(traces)
        assert torch.isfinite(weights).all()
        assert (weights >= 1).all()
    assert ntk_weights(torch.zeros(3)).tolist() == [3.0] * 3


def network() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return model, torch.randn(5, 2, dtype=torch.float64)


def exact_trace(model: nn.Module, residuals: Tensor) -> Tensor:
    rows = [torch.autograd.grad(r, list(model.parameters()), retain_graph=True) for r in residuals.flatten()]
    return torch.stack([g.square().sum() for row in rows for g in row]).sum()


def test_trace_estimate_has_the_exact_expectation() -> None:
    """The mean over all 2^5 sign vectors is the expectation."""
    model, points = network()
    residuals = model(points).squeeze(-1) ** 2
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=5)))
    estimate = ntk_trace(residuals, model.parameters(), signs)
    torch.testing.assert_close(estimate, exact_trace(model, residuals))
    assert not estimate.requires_grad
    each = torch.stack([ntk_trace(residuals, model.parameters(), row) for row in signs])
    torch.testing.assert_close(each.mean(), estimate)
    assert each.std() > 0


def test_trace_of_one_residual_is_exact() -> None:
    model, points = network()
    residual = model(points[:1]).sum()
    unused = torch.ones(3, requires_grad=True)
    estimate = ntk_trace(residual, [*model.parameters(), unused], torch.tensor(-1.0))
    torch.testing.assert_close(estimate, exact_trace(model, residual))


def test_traces_of_replicas_equal_those_of_single_networks() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, scale = (torch.randn(*s, generator=generator).requires_grad_() for s in ((2, 3, 4, 5), (2, 3)))
    points, signs = torch.randn(6, 4, generator=generator), torch.randn(2, 3, 6, 5, generator=generator).sign()
    residuals = torch.tanh(points @ weight) * scale[..., None, None]
    traces = ntk_trace(residuals, [weight, scale], signs, batch_dims=2)
    assert traces.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        own = [p[i, j].detach().requires_grad_() for p in (weight, scale)]
        one = ntk_trace(torch.tanh(points @ own[0]) * own[1], own, signs[i, j])
        torch.testing.assert_close(traces[i, j], one)
    with pytest.raises(ValueError, match=r"a parameter has shape \(3, 2\), expected the leading dimensions \(2, 3\)"):
        ntk_trace(residuals, [weight, scale.mT], signs, batch_dims=2)


def test_signs_of_the_wrong_shape_are_refused() -> None:
    model, points = network()
    for shape in ((4,), (5,), (2, 3, 5, 1), (5, 2)):
        with pytest.raises(ValueError, match="signs have shape"):
            ntk_trace(model(points), model.parameters(), torch.ones(shape))


def test_batched_equals_single() -> None:
    norms, previous, largest = draw(4, 5, 3, seed=10), draw(4, 5, 3, seed=11), draw(4, 5, seed=12)
    norms[0, 0, 1] = NAN
    shares = draw(4, 5, 3, seed=13, decades=0.1)
    batched = (
        update_log_norms(previous, norms),
        gradient_normalise_weights(norms.log(), shares=shares),
        lra_weights(previous, largest, norms, reference=0),
        ntk_weights(norms),
    )
    for i in range(4):
        for j in range(5):
            one = (
                update_log_norms(previous[i, j], norms[i, j]),
                gradient_normalise_weights(norms[i, j].log(), shares=shares[i, j]),
                lra_weights(previous[i, j], largest[i, j], norms[i, j], reference=0),
                ntk_weights(norms[i, j]),
            )
            torch.testing.assert_close(tuple(result[i, j] for result in batched), one)


def test_results_have_no_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not update_log_norms(x, x).requires_grad
    assert not gradient_normalise_weights(x, shares=x).requires_grad
    assert not lra_weights(x, x[0], x, reference=0).requires_grad
    assert not ntk_weights(x).requires_grad


def test_values_are_not_read() -> None:
    """Tensors on the meta device have no values."""
    x = torch.ones(4, 3, device="meta")
    assert gradient_normalise_weights(update_log_norms(x, x), shares=x).shape == x.shape
    assert lra_weights(x, x[..., 0], x, reference=0).shape == x.shape
    assert ntk_weights(x).shape == x.shape
