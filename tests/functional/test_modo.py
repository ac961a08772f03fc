"""MoDo takes a projected gradient step on the simplex, as torchjd does."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.gram_properties import arbitrary_matrices, check_arbitrary, check_batching
from helpers.grams import jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f


def uniform(gram: Tensor) -> Tensor:
    return torch.full(gram.shape[:-1], 1 / gram.shape[-1], dtype=gram.dtype)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), tasks=st.integers(1, 6), gamma=st.floats(1e-4, 0.1), rho=st.floats(0, 1))
def test_step_is_a_projection_on_the_simplex(seed: int, tasks: int, gamma: float, rho: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    lam = torch.rand(tasks, generator=generator, dtype=torch.float64)
    lam /= lam.sum()
    j1, j2 = torch.randn(2, tasks, 9, generator=generator, dtype=torch.float64)
    weights, new = f.modo_weights(lam, j1 @ j2.T, gamma=gamma, rho=rho)
    assert weights.sum().item() == pytest.approx(1)
    assert (weights >= 0).all()
    assert (new == weights).all()
    # Optimality: x − w is constant on the support and no larger elsewhere.
    off = lam - gamma * (j1 @ (j2.T @ lam) + rho * lam) - weights
    level = off[weights > 0]
    assert level.max() - level.min() < 1e-9
    assert (off[weights == 0] <= level.min() + 1e-9).all()
    order = torch.randperm(tasks, generator=generator)
    permuted, _ = f.modo_weights(lam[order], j1[order] @ j2[order].T, gamma=gamma, rho=rho)
    torch.testing.assert_close(permuted, weights[order])


def test_steps_approach_the_shortest_combination() -> None:
    """With equal batches and no regularisation, the fixed point minimises ‖Jᵀλ‖, as MGDA does."""
    j = jacobians("conflicting", 1, 3)[0]
    gram = j @ j.T
    lam = uniform(gram)
    for _ in range(600):
        _, lam = f.modo_weights(lam, gram, gamma=0.3 / gram.diagonal().max().item(), rho=0.0)
    torch.testing.assert_close(lam, f.mgda_weights(gram), rtol=1e-4, atol=1e-4)


def test_torchjd() -> None:
    """All 200 steps agree, in sequences of ten with the same number of tasks."""
    generator = torch.Generator().manual_seed(0)
    for count in range(20):
        tasks = 2 + count % 15
        weighting = torchjd.MoDoWeighting(gamma=0.02, rho=0.1)
        lam = torch.full((tasks,), 1 / tasks, dtype=torch.float64)
        for _ in range(10):
            j1, j2 = torch.randn(2, tasks, 40, generator=generator, dtype=torch.float64)
            j1 = j1 * 10 ** (0.5 * torch.randn(tasks, 1, generator=generator, dtype=torch.float64))
            weights, lam = f.modo_weights(lam, j1 @ j2.T, gamma=0.02, rho=0.1)
            torch.testing.assert_close(weights, weighting(j1 @ j2.T), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("solver_mode")
def test_absent_task_keeps_its_share() -> None:
    lam = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    j = jacobians("regular", 1, 3)[0]
    gram = j @ j.T
    gram[1] = torch.nan
    weights, new = f.modo_weights(lam, gram, gamma=1e-3)
    expected, _ = f.modo_weights(lam[[0, 2]] / 0.5, (j @ j.T)[[0, 2]][:, [0, 2]], gamma=1e-3)
    torch.testing.assert_close(weights[[0, 2]], expected)
    assert weights[1] == 0
    assert new[1] == 0.5
    torch.testing.assert_close(new[[0, 2]], 0.5 * expected)
    lone = torch.diag(torch.tensor([torch.nan, 1.0, torch.nan], dtype=torch.float64))
    weights, new = f.modo_weights(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), lone)
    assert weights.tolist() == [0, 1, 0]
    assert new.tolist() == [1, 0, 0]


@pytest.mark.usefixtures("solver_mode")
def test_batches_and_dtypes() -> None:
    check_batching(lambda gram: f.modo_weights(uniform(gram), gram)[0], 3)
    weights, new = f.modo_weights(torch.tensor([0.5, 0.5]), torch.eye(2, dtype=torch.float64))
    assert (weights.dtype, new.dtype) == (torch.float64, torch.float32)
    value = torch.ones((), requires_grad=True)
    (weights * value).sum().backward()  # results may be used in an autograd graph
    assert value.grad is not None


@settings(deadline=None, max_examples=60)
@given(arbitrary_matrices())
def test_arbitrary_matrices(gram: Tensor) -> None:
    check_arbitrary(lambda matrix: f.modo_weights(uniform(matrix), matrix)[0], gram)


def test_invalid_arguments() -> None:
    for options in ({"gamma": 0.0}, {"rho": -1.0}):
        with pytest.raises(ValueError, match="gamma must be positive and rho not negative"):
            f.modo_weights(torch.ones(2) / 2, torch.eye(2), **options)
    with pytest.raises(ValueError, match=r"shape \(…, T, T\), got \(2, 3\)"):
        f.modo_weights(torch.ones(2) / 2, torch.ones(2, 3))
