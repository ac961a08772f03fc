"""COSMOS and PBI against their equations, finite differences, and torchjd."""

from collections.abc import Callable

import mpmath
import pytest
import torch
import torchjd.scalarization as torchjd
from torch import Tensor

from counterpoise.functional import Step, cosmos, pbi

RULES: list[Callable[[Tensor, Tensor], Step]] = [cosmos, pbi]


def vectors(count: int = 200) -> list[tuple[Tensor, Tensor]]:
    """Return losses and preferences, T from 2 to 16; every second pair differs by orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for index in range(count):
        tasks = 2 + index % 15
        decades = 1.5 if index % 2 else 0.2
        losses = 10 ** (decades * torch.randn(tasks, generator=generator, dtype=torch.float64))
        preference = torch.rand(tasks, generator=generator, dtype=torch.float64) + 0.01
        pairs.append((losses, preference * tasks / preference.sum()))
    return pairs


def autograd(scalariser: Callable[[Tensor], Tensor], losses: Tensor) -> tuple[Tensor, Tensor]:
    leaf = losses.clone().requires_grad_()
    value = scalariser(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def test_cosmos_agrees_with_torchjd() -> None:
    for index, (losses, preference) in enumerate(vectors()):
        penalty = [0.0, 0.01, 1.0, 8.0][index % 4]
        step = cosmos(losses, preference, penalty=penalty)
        expected = autograd(torchjd.COSMOS(penalty, preference), losses)
        torch.testing.assert_close((step.objective, step.weights), expected, rtol=1e-10, atol=1e-12)


def test_pbi_agrees_with_torchjd() -> None:
    for index, (losses, preference) in enumerate(vectors()):
        theta = [0.0, 0.1, 5.0][index % 3]
        reference = 0.3 * losses.flip(0).clamp_max(losses.min()) if index % 2 else None
        step = pbi(losses, preference, theta=theta, reference=reference)
        expected = autograd(torchjd.PBI(theta, preference, reference), losses)
        torch.testing.assert_close((step.objective, step.weights), expected, rtol=1e-10, atol=1e-12)


def test_objectives_match_their_equations() -> None:
    with mpmath.workdps(50):
        for losses, preference in vectors(20):
            x, p = (mpmath.matrix(v.tolist()) for v in (losses, preference))
            dot, length, total = (p.T * x)[0], mpmath.norm(x), mpmath.norm(p)
            expected = float(dot - 2 * dot / (length * total))
            assert cosmos(losses, preference, penalty=2.0).objective.item() == pytest.approx(expected, rel=1e-12)
            along = dot / total
            expected = float(along + 3 * mpmath.norm(x - along * p / total))
            assert pbi(losses, preference, theta=3.0).objective.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_weights_are_the_derivatives(rule: Callable[[Tensor, Tensor], Step]) -> None:
    for losses, preference in vectors(30):
        weights = rule(losses, preference).weights
        for task in range(len(losses)):
            h = 1e-6 * losses.max()
            ends = []
            for sign in (1, -1):
                moved = losses.clone()
                moved[task] += sign * h
                ends.append(rule(moved, preference).objective)
            torch.testing.assert_close(weights[task], (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-5)


def test_cosmos_is_the_weighted_sum_without_penalty() -> None:
    losses, preference = torch.tensor([3.0, 4.0]), torch.tensor([0.5, 1.5])
    step = cosmos(losses, preference, penalty=0.0)
    torch.testing.assert_close(step.weights, preference)
    torch.testing.assert_close(step.objective, torch.tensor(7.5))


def test_cosine_does_not_change_with_the_scale_of_all_losses() -> None:
    losses, preference = torch.tensor([3.0, 4.0]).double(), torch.tensor([0.5, 1.5]).double()
    parts = [
        cosmos(c * losses, preference, penalty=1.0).objective - c * (losses @ preference) for c in (1.0, 1e-3, 1e3)
    ]
    torch.testing.assert_close(parts[1:], [parts[0]] * 2, rtol=1e-9, atol=0)


def test_pbi_on_the_ray_has_the_weights_of_the_ray() -> None:
    preference = torch.tensor([1.0, 2.0, 2.0]).double()
    for factor in (1e-38, 1.0, 0.1, 1e38):
        step = pbi(factor * preference, preference)
        torch.testing.assert_close(step.weights, preference / 3)
        torch.testing.assert_close(step.objective.item(), 3 * factor, rtol=1e-12, atol=1e-5)


def test_pbi_scales_with_the_losses() -> None:
    """Away from the ray, multiplying all losses multiplies the objective and keeps the weights."""
    losses, preference = torch.tensor([3.0, 1.0]).double(), torch.tensor([1.0, 1.0]).double()
    step, scaled = pbi(losses, preference), pbi(1e6 * losses, preference)
    torch.testing.assert_close(scaled.weights, step.weights)
    torch.testing.assert_close(scaled.objective, 1e6 * step.objective)


@pytest.mark.parametrize("rule", RULES)
def test_absent_tasks_get_weight_zero_and_do_not_affect_the_others(rule: Callable[[Tensor, Tensor], Step]) -> None:
    losses = torch.tensor([3.0, torch.nan, 0.5, torch.inf])
    preference = torch.tensor([0.5, 1.0, 2.0, 0.5])
    step, present = rule(losses, preference), [0, 2]
    alone = rule(losses[present], preference[present])
    assert step.weights[[1, 3]].tolist() == [0.0, 0.0]
    torch.testing.assert_close((step.objective, step.weights[present]), (alone.objective, alone.weights))
    none = rule(torch.full((4,), torch.nan), preference)
    assert none.weights.tolist() == [0.0] * 4
    assert none.objective.abs() < 1e-5


def test_reference_of_an_absent_task_may_be_nan() -> None:
    losses, reference = torch.tensor([3.0, torch.nan, 0.5]), torch.tensor([1.0, torch.nan, 0.0])
    step = pbi(losses, torch.ones(3), reference=reference)
    alone = pbi(losses[[0, 2]], torch.ones(2), reference=reference[[0, 2]])
    torch.testing.assert_close((step.objective, step.weights[[0, 2]]), (alone.objective, alone.weights))


@pytest.mark.parametrize("rule", RULES)
def test_batched_equals_single(rule: Callable[[Tensor, Tensor], Step]) -> None:
    generator = torch.Generator().manual_seed(3)
    losses, preference = (torch.rand(4, 5, 3, generator=generator) for _ in range(2))
    losses[0, 0, 0] = torch.nan
    together = rule(losses, preference)
    for i in range(4):
        for j in range(5):
            one = rule(losses[i, j], preference[i, j])
            torch.testing.assert_close((together.objective[i, j], together.weights[i, j]), (one.objective, one.weights))
    torch.testing.assert_close(rule(losses, preference[0, 0]).weights[0, 0], together.weights[0, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_extreme_losses_give_finite_weights(rule: Callable[[Tensor, Tensor], Step], dtype: torch.dtype) -> None:
    extremes = torch.tensor([0.0, 1e-38, 1.0, 1e38]).to(dtype)
    for losses in (extremes, extremes[:2], torch.zeros(3, dtype=dtype), torch.full((3,), 1e38).to(dtype)):
        for preference in (torch.ones(len(losses)), torch.zeros(len(losses)), 1e-3 * torch.arange(len(losses))):
            step = rule(losses.requires_grad_(), preference)
            assert torch.isfinite(step.weights).all()
            assert torch.isfinite(step.objective)
            assert not step.weights.requires_grad
            assert step.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("rule", RULES)
def test_values_are_not_read(rule: Callable[[Tensor, Tensor], Step]) -> None:
    """Tensors on the meta device have no values."""
    x = torch.ones(4, 3, device="meta")
    assert rule(x, x).weights.shape == x.shape
