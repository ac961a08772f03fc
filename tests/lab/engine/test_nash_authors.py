"""`NashAuthors` agrees with the iteration of the paper's experiments."""

import numpy as np
import pytest
import torch
from torch import nn

import counterpoise as cp
from counterpoise.lab.engine.methods import describe, make
from counterpoise.lab.engine.nash_authors import NashAuthors, fixed_point


def reference(gram: np.ndarray, start: np.ndarray) -> np.ndarray:
    gram = gram / np.linalg.norm(gram)
    alpha = start
    for _ in range(50):
        new = 1 / np.maximum(gram @ alpha, 1e-12)
        new = new / new.sum()
        done = np.abs(new - alpha).max() < 1e-8
        alpha = new
        if done:
            break
    return alpha


@pytest.mark.parametrize("seed", range(5))
def test_the_iteration_agrees_with_numpy(seed: int) -> None:
    jacobian = np.random.default_rng(seed).normal(size=(3, 20)) + 0.4
    gram, start = jacobian @ jacobian.T, np.array([0.2, 0.3, 0.5])
    found = fixed_point(torch.from_numpy(gram), torch.from_numpy(start))
    np.testing.assert_allclose(found.numpy(), reference(gram, start), rtol=1e-9)


def test_with_positive_cosines_it_converges_to_the_bargaining_solution() -> None:
    gram = torch.tensor([[4.0, 1.0], [1.0, 9.0]], dtype=torch.float64)
    found, exact = fixed_point(gram, torch.full((2,), 0.5, dtype=torch.float64)), cp.functional.nash_weights(gram)
    torch.testing.assert_close(found, exact / exact.sum(), rtol=1e-6, atol=0)


def test_with_a_negative_cosine_it_alternates_between_two_solutions() -> None:
    gram = torch.tensor([[1.0, -0.9, 0.1], [-0.9, 1.0, 0.1], [0.1, 0.1, 1.0]], dtype=torch.float64)
    start = torch.tensor([0.30, 0.36, 0.34], dtype=torch.float64)
    one = fixed_point(gram, start)
    other = 1 / (gram @ one).clamp_min(1e-12)
    other = other / other.sum()
    assert (one - other).abs().max() > 0.1


def test_the_scaled_direction_is_clipped_and_heads_are_not() -> None:
    for scale in (1.0, 2.0**10):
        trunk, head = nn.Parameter(torch.tensor([1.0, 1.0])), nn.Parameter(torch.tensor([1.0]))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        balancer = NashAuthors(2)
        losses = [3 * trunk[0] * head[0], 4 * trunk[1] + trunk[0]]
        balancer.backward(losses, shared=[trunk], scaler=scaler)
        assert trunk.grad is not None
        assert head.grad is not None
        assert float(trunk.grad.norm()) == pytest.approx(1.0, rel=1e-3)  # the scaled gradient is clipped
        assert float(head.grad) == pytest.approx(3 * scale)
        assert balancer.weights is not None
        torch.testing.assert_close(balancer.weights @ torch.tensor([[3.0, 0.0], [1.0, 4.0]]), trunk.grad / scale)


def test_it_is_not_part_of_the_library() -> None:
    assert "nash-authors" not in cp.methods()
    assert describe("nash-authors").space == "gradient"
    assert isinstance(make("nash-authors", ("a", "b"), batch_shape=()), NashAuthors)
