"""GO4Align: the weights against their equation, the groups against all partitions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoise.functional import go4align_update, go4align_weights


def raw_weights(log_probabilities: Tensor, losses: Tensor) -> np.ndarray:
    p = np.exp(log_probabilities.double().numpy())
    x = losses.double().numpy()
    return np.asarray(p / p.sum() * x.sum() / x)


def scatter_within(values: np.ndarray, cuts: tuple[int, ...]) -> float:
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(values, cuts)))


def smallest_scatter(values: np.ndarray, groups: int) -> float:
    """Return the cost of the best partition of the values into intervals; one-dimensional clusters are intervals."""
    ordered = np.sort(values)
    return min(
        scatter_within(ordered, cuts)
        for k in range(min(groups, len(values)))
        for cuts in itertools.combinations(range(1, len(values)), k)
    )


def draw(*shape: int, seed: int = 0, decades: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (decades * torch.randn(*shape, generator=generator, dtype=torch.float64))


def test_probabilities_follow_the_multiplicative_update() -> None:
    log, p = torch.zeros(3, dtype=torch.float64), np.full(3, 1 / 3)
    for step in range(20):
        losses = draw(3, seed=step)
        log = go4align_update(log, losses, step_size=0.1)
        p = p * np.exp(-0.1 * losses.numpy())
        p = p / p.sum()
    np.testing.assert_allclose(log.exp(), p, rtol=1e-12)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("groups", [1, 2, 3, 7, 20])
def test_groups_are_optimal(tasks: int, groups: int) -> None:
    for seed in range(20):
        log, losses = draw(tasks, seed=seed).log(), draw(tasks, seed=100 + seed)
        raw = raw_weights(log, losses)
        ours = go4align_weights(log, losses, groups=groups).numpy()
        assert len(set(ours.round(12))) <= groups
        for weight in set(ours):  # each weight is the mean of its group
            np.testing.assert_allclose(raw[ours == weight].mean(), weight, rtol=1e-12)
        np.testing.assert_allclose(((raw - ours) ** 2).sum(), smallest_scatter(raw, groups), rtol=1e-9, atol=1e-13)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 1e3, 1e-3]), min_size=1, max_size=7), st.integers(1, 4))
def test_groups_are_optimal_with_ties(values: list[float], groups: int) -> None:
    losses = torch.tensor(values, dtype=torch.float64)
    log = torch.zeros_like(losses)
    raw = raw_weights(log, losses)
    ours = go4align_weights(log, losses, groups=groups).numpy()
    np.testing.assert_allclose(((raw - ours) ** 2).sum(), smallest_scatter(raw, groups), rtol=1e-9, atol=1e-9)
    for value in set(values):  # equal tasks get equal weights
        assert np.ptp(ours[losses.numpy() == value]) <= 1e-12 * ours.max()


def test_task_between_two_groups_joins_the_one_of_larger_weights() -> None:
    losses = 1 / torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    weights = go4align_weights(torch.zeros(3), losses)
    torch.testing.assert_close(weights / weights[0], torch.tensor([1.0, 2.5, 2.5], dtype=torch.float64))


def test_groups_are_resolved_next_to_a_far_larger_weight() -> None:
    losses = 1e4 / torch.tensor([1e10, 100.0, 2.0, 1.0], dtype=torch.float64)
    weights = go4align_weights(torch.zeros(4), losses, groups=3)
    torch.testing.assert_close(weights / weights[2], torch.tensor([1e10, 100, 1.5, 1.5], dtype=torch.float64) / 1.5)


def test_one_group_gives_the_mean_and_many_groups_give_the_raw_weights() -> None:
    log, losses = draw(5, seed=1).log(), draw(5, seed=2)
    raw = raw_weights(log, losses)
    np.testing.assert_allclose(go4align_weights(log, losses, groups=1), np.full(5, raw.mean()), rtol=1e-12)
    np.testing.assert_allclose(go4align_weights(log, losses, groups=5), raw, rtol=1e-12)


def test_order_of_the_tasks_does_not_matter() -> None:
    log, losses = draw(6, seed=3).log(), draw(6, seed=4)
    order = [3, 1, 5, 0, 4, 2]
    torch.testing.assert_close(go4align_weights(log[order], losses[order]), go4align_weights(log, losses)[order])


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_absent_tasks_get_weight_zero_and_do_not_affect_the_others(groups: int) -> None:
    log, losses = draw(6, seed=5).log(), draw(6, seed=6)
    losses[1], losses[4] = torch.nan, torch.inf
    present = [0, 2, 3, 5]
    weights = go4align_weights(log, losses, groups=groups)
    assert weights[[1, 4]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(weights[present], go4align_weights(log[present], losses[present], groups=groups))
    after = go4align_update(log, losses, step_size=0.3)
    torch.testing.assert_close(after[1] - after[4], log[1] - log[4])
    torch.testing.assert_close(after[0] - after[1], log[0] - log[1] - 0.3 * losses[0])
    assert go4align_weights(log, torch.full((6,), torch.nan)).tolist() == [0.0] * 6


def test_batched_equals_single() -> None:
    log, losses = draw(4, 5, 6, seed=7).log(), draw(4, 5, 6, seed=8)
    losses[0, 0, 2] = torch.nan
    updated, weights = go4align_update(log, losses), go4align_weights(log, losses, groups=3)
    for i in range(4):
        for j in range(5):
            torch.testing.assert_close(updated[i, j], go4align_update(log[i, j], losses[i, j]))
            torch.testing.assert_close(weights[i, j], go4align_weights(log[i, j], losses[i, j], groups=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_extreme_losses_give_finite_weights(groups: int, dtype: torch.dtype) -> None:
    extremes = torch.tensor([0.0, 1e-38, 1.0, 1e38], dtype=dtype)
    log = torch.zeros(4, dtype=dtype)
    for losses in (extremes, extremes.flip(0), torch.zeros(4, dtype=dtype), torch.full((4,), 1e38, dtype=dtype)):
        log = go4align_update(log, losses)
        weights = go4align_weights(log, losses, groups=groups)
        assert torch.isfinite(log).all()
        assert torch.isfinite(weights).all()
        assert (weights >= 0).all()
        assert weights.dtype == dtype


def test_number_of_groups_must_be_positive() -> None:
    with pytest.raises(ValueError, match="groups is 0"):
        go4align_weights(torch.zeros(2), torch.ones(2), groups=0)


def test_values_are_not_read() -> None:
    """Tensors on the meta device have no values."""
    x = torch.ones(4, 3, device="meta")
    assert go4align_weights(go4align_update(x, x), x).shape == x.shape
