"""CoV-Weighting: running statistics against the statistics of the whole history."""

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoise.functional import CoVState, cov_update, cov_weights


def start(*shape: int, dtype: torch.dtype = torch.float64) -> CoVState:
    return CoVState(*(torch.zeros(shape, dtype=dtype) for _ in range(4)))


def history(steps: int, tasks: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (2 * torch.randn(tasks, generator=generator, dtype=torch.float64))
    return scale * torch.rand(steps, tasks, generator=generator, dtype=torch.float64).add(0.1)


def replay(losses: Tensor, decay: float | None = None, dtype: torch.dtype = torch.float64) -> CoVState:
    state = start(*losses.shape[1:], dtype=dtype)
    for row in losses:
        state = cov_update(state, row, decay=decay)
    return state


def ratios(losses: np.ndarray) -> np.ndarray:
    """Return L(t) / mean(L(1), …, L(t−1)), and 1 for the first step."""
    means = np.cumsum(losses, 0) / np.arange(1, len(losses) + 1)[:, None]
    return np.concatenate([np.ones_like(losses[:1]), losses[1:] / means[:-1]])


@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_statistics_are_those_of_the_history(steps: int) -> None:
    losses = history(steps, 4)
    state = replay(losses)
    expected = ratios(losses.numpy())
    assert state.steps.tolist() == [steps] * 4
    np.testing.assert_allclose(state.mean_loss, losses.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(state.mean_ratio, expected.mean(0), rtol=1e-12)
    np.testing.assert_allclose(state.variance, expected.var(0), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_decaying_statistics_are_exponential_averages(decay: float) -> None:
    """The variance equals the weighted variance with the weights of the exponential average."""
    losses = history(20, 3, seed=1).numpy()
    state = replay(torch.from_numpy(losses), decay=decay)
    means = losses[:1]
    values = [np.ones(3)]
    for row in losses[1:]:
        values.append(row / means[-1])
        means = np.concatenate([means, decay * means[-1:] + (1 - decay) * row])
    power = decay ** np.arange(len(losses) - 1, -1, -1.0)
    weights = power * np.where(np.arange(len(losses)) == 0, 1.0, 1 - decay)
    mean = weights @ np.stack(values)
    np.testing.assert_allclose(weights.sum(), 1.0)
    np.testing.assert_allclose(state.mean_loss, means[-1], rtol=1e-12)
    np.testing.assert_allclose(state.mean_ratio, mean, rtol=1e-12)
    np.testing.assert_allclose(state.variance, weights @ (np.stack(values) - mean) ** 2, rtol=1e-10, atol=1e-15)


def test_weights_are_coefficients_of_variation() -> None:
    losses = history(30, 5, seed=2)
    values = ratios(losses.numpy())
    expected = np.sqrt(values.var(0) + 1e-8) / values.mean(0)
    np.testing.assert_allclose(cov_weights(losses[-1], replay(losses)), expected / expected.sum(), rtol=1e-10)


def test_weights_are_equal_for_two_steps_and_for_constant_losses() -> None:
    losses = torch.tensor([3.0, 4.0, 5.0])
    equal = torch.full((3,), 1 / 3)
    for steps in (0, 1):
        torch.testing.assert_close(cov_weights(losses, replay(history(steps, 3), dtype=torch.float32)), equal)
    torch.testing.assert_close(cov_weights(losses, replay(losses.expand(6, 3))), equal)


def test_weights_do_not_change_with_the_scale_of_a_loss() -> None:
    losses = history(10, 3)
    factors = torch.tensor([1.0, 1e-8, 1e8], dtype=torch.float64)
    torch.testing.assert_close(cov_weights(losses[0], replay(losses * factors)), cov_weights(losses[0], replay(losses)))


def test_absent_tasks_keep_their_statistics_and_get_weight_zero() -> None:
    losses = history(12, 3, seed=3)
    gaps = losses.repeat_interleave(2, 0)
    gaps[1::2, 1] = torch.nan  # task 1 is present in every other step only
    gaps[::2, [0, 2]] = torch.inf
    torch.testing.assert_close(replay(gaps), replay(losses))
    state = replay(losses)
    weights = cov_weights(torch.tensor([1.0, torch.nan, 1.0]), state)
    assert weights[1] == 0
    alone = cov_weights(torch.ones(2), CoVState(*(part[[0, 2]] for part in state)))
    torch.testing.assert_close(weights[[0, 2]], alone)
    assert cov_weights(torch.full((3,), torch.nan), state).tolist() == [0.0] * 3


def test_late_task_gets_the_mean_weight_of_the_others() -> None:
    losses = history(8, 3, seed=4)
    losses[:7, 2] = torch.nan
    weights = cov_weights(torch.ones(3), replay(losses))
    torch.testing.assert_close(weights[2], weights[:2].mean())


def test_batched_equals_single() -> None:
    losses = history(9, 24, seed=5).view(9, 2, 4, 3)
    losses[3, 0, 1, 2] = torch.nan
    state = replay(losses, decay=0.8)
    weights = cov_weights(losses[3], state)
    for i in range(2):
        for j in range(4):
            one = replay(losses[:, i, j], decay=0.8)
            torch.testing.assert_close(CoVState(*(part[i, j] for part in state)), one)
            torch.testing.assert_close(weights[i, j], cov_weights(losses[3, i, j], one))


@pytest.mark.parametrize("decay", [None, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_losses_give_finite_weights(dtype: torch.dtype, decay: float | None) -> None:
    extremes = torch.tensor([0.0, 1e-38, 1.0, 1e38])
    losses = torch.stack([extremes.roll(k) for k in (0, 1, 3, 2, 0, 0, 2)] + [torch.zeros(4)] * 3)
    state = start(4, dtype=dtype)
    for row in losses:
        state = cov_update(state, row, decay=decay)
        weights = cov_weights(row, state)
        assert all(torch.isfinite(part).all() and part.dtype == dtype for part in state)
        assert torch.isfinite(weights).all()
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(), torch.ones(()))


def test_values_are_not_read() -> None:
    """Tensors on the meta device have no values."""
    x = torch.ones(4, 3, device="meta")
    for decay in (None, 0.9):
        assert cov_weights(x, cov_update(CoVState(x, x, x, x), x, decay=decay)).shape == x.shape
