"""Preferences of the Gram solvers: defining equations, other implementations, and invariances."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.grams import KINDS, dependent, grams, jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from torch import Tensor

import counterpoise.functional as f

SOLVERS: dict[str, Callable[..., f.Solution]] = {
    "cagrad": f.cagrad,
    "upgrad": f.upgrad,
    "dualproj": f.dualproj,
    "nash": f.nash,
    "fairgrad-2": partial(f.fairgrad, alpha=2.0),
    "fairgrad-0.5": partial(f.fairgrad, alpha=0.5),
}
WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "cagrad": f.cagrad_weights,
    "upgrad": f.upgrad_weights,
    "dualproj": f.dualproj_weights,
    "nash": f.nash_weights,
    "fairgrad-2": partial(f.fairgrad_weights, alpha=2.0),
    "fairgrad-0.5": partial(f.fairgrad_weights, alpha=0.5),
}


def preferences(*shape: int, decades: float = 3.0, seed: int = 0) -> Tensor:
    """Return preferences between 10^−decades and 10^decades."""
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (decades * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1))


def assert_same_direction(gram: Tensor, weights: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare Σ w_i g_i: the weights of dependent gradients are not unique."""
    gram, off = gram.nan_to_num(), weights - expected
    size = (gram.diagonal(dim1=-2, dim2=-1).sqrt() * expected.abs()).sum(-1)
    error = torch.einsum("...i,...ij,...j->...", off, gram, off).clamp_min(0).sqrt()
    assert (error <= tolerance * size).all()


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 5])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scaled"])
@pytest.mark.parametrize("name", SOLVERS)
def test_uniform_preference_equals_none(name: str, kind: str, tasks: int) -> None:
    gram = grams(kind, 12, tasks)
    expected = SOLVERS[name](gram)
    solution = SOLVERS[name](gram, preference=torch.full((tasks,), 7.0))
    assert torch.equal(solution.solved, expected.solved)
    assert_same_direction(gram, solution.weights, expected.weights, 1e-7 if kind in ("crowded", "opposite") else 1e-10)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), tasks=st.integers(2, 6), exponent=st.floats(-30, 30))
@pytest.mark.parametrize("name", WEIGHTS)
def test_scaling_the_preference_has_no_effect(name: str, seed: int, tasks: int, exponent: float) -> None:
    gram, p = grams("conflicting", 1, tasks, seed)[0], preferences(tasks, decades=2, seed=seed)
    expected = WEIGHTS[name](gram, preference=p)
    scaled = WEIGHTS[name](gram, preference=p * 10**exponent)
    assert_same_direction(gram, scaled, expected, 1e-9)


@pytest.mark.parametrize("name", WEIGHTS)
def test_batches_absent_tasks_and_permutations(name: str) -> None:
    solve, p = WEIGHTS[name], preferences(12, 5, decades=1)
    gram = grams("absent", 12, 5)
    together = solve(gram, preference=p)
    assert together.dtype == torch.float64
    torch.testing.assert_close(solve(gram.view(3, 4, 5, 5), preference=p.view(3, 4, 5)), together.view(3, 4, 5))
    assert solve(gram.float(), preference=p[0]).dtype == torch.float32
    for one, preference, w in zip(gram, p, together, strict=True):
        present = one.diagonal().isfinite()
        assert (w[~present] == 0).all()
        expected = solve(one[present][:, present], preference=preference[present])
        torch.testing.assert_close(w[present], expected, rtol=1e-8, atol=1e-10)
    flipped = solve(gram.flip(-1, -2), preference=p.flip(-1)).flip(-1)
    torch.testing.assert_close(flipped, together, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "duplicated", "absent"])
def test_fairgrad_satisfies_the_weighted_equation(kind: str, tasks: int, alpha: float) -> None:
    """(w_i/p_i)^{1/α} (Gw)_i = 1 for p with mean 1, up to 1e-12 and the rounding of the terms that cancel."""
    gram, p = grams(kind, 40, tasks), preferences(40, tasks)
    solution = f.fairgrad(gram, alpha=alpha, preference=p)
    assert solution.solved.all()
    present = gram.diagonal(dim1=-2, dim2=-1).isfinite()
    gram, w, p = gram.nan_to_num(), solution.weights, torch.where(present, p, 0.0)
    p = p * present.sum(-1, keepdim=True) / p.sum(-1, keepdim=True)
    products, terms = (w * (matrix @ w.unsqueeze(-1)).squeeze(-1) for matrix in (gram, gram.abs()))
    target = w ** (1 - 1 / alpha) * p ** (1 / alpha)
    assert ((products - target).abs() <= 1e-12 * target + 1e-15 * terms)[present].all()
    assert (w[present] > 0).all()


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize(("tasks", "rank"), [(4, 3), (16, 12), (40, 30)])
def test_fairgrad_with_nearly_dependent_gradients(tasks: int, rank: int, alpha: float) -> None:
    j = dependent(tasks, rank, 1e-6)
    j = j + 2 * j.norm(dim=-1, keepdim=True) / rank**0.5  # a common descent direction exists
    gram, p = j @ j.mT, preferences(6, tasks)
    solution = f.fairgrad(gram, alpha=alpha, preference=p)
    assert solution.solved.all()
    w, p = solution.weights, p / p.mean(-1, keepdim=True)
    torch.testing.assert_close((gram @ w.unsqueeze(-1)).squeeze(-1), (p / w) ** (1 / alpha), rtol=1e-10, atol=0)
    assert (solution.residual <= 1e-10).all()


def test_nash_minimises_its_objective() -> None:
    """The weights minimise ½wᵀGw − Σ p_i log w_i, in float64 and in float32."""
    for seed in range(5):
        gram, p = grams("conflicting", 1, 3, seed)[0], preferences(3, decades=1, seed=seed)
        p = p / p.mean()
        g, q = gram.numpy(), p.numpy()
        result = minimize(
            lambda u, g=g, q=q: 0.5 * np.exp(u) @ g @ np.exp(u) - q @ u,
            -np.log(g.diagonal()) / 2,
            options={"gtol": 1e-9},
        )
        expected = torch.from_numpy(np.exp(result.x))
        torch.testing.assert_close(f.nash_weights(gram, preference=p), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(f.nash_weights(gram.float(), preference=p), expected.float(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["nash", "fairgrad-2"])
def test_task_without_importance_is_dropped(name: str) -> None:
    gram = grams("opposite", 6, 4)  # the last gradient is opposite to the first
    p = torch.tensor([2.0, 1.0, 0.5, 0.0])
    solution = SOLVERS[name](gram, preference=p)
    expected = SOLVERS[name](gram[:, :3, :3], preference=p[:3])
    assert solution.solved.all()
    assert (solution.weights[:, 3] == 0).all()
    torch.testing.assert_close(solution.weights[:, :3], expected.weights)
    assert (SOLVERS[name](gram, preference=torch.zeros(4)).weights == 0).all()


def test_fallback_of_nash_is_mgda() -> None:
    gram, p = grams("opposite", 10, 3), preferences(10, 3)
    solution = f.nash(gram, preference=p)
    assert not solution.solved.any()
    torch.testing.assert_close(solution.weights, f.mgda_weights(gram))


def cagrad_value(j: Tensor, b: Tensor, alpha: float) -> float:
    """Return the best min_i ⟨g_i, d⟩ around Σ b_i g_i, computed from the dual with scipy."""
    rows, mean = j.numpy(), (b @ j).numpy()
    radius = alpha * float(np.linalg.norm(mean))
    result = minimize(
        lambda w: (w @ rows) @ mean + radius * np.sqrt(np.square(w @ rows).sum() + 1e-16),
        np.full(len(rows), 1 / len(rows)),
        bounds=[(0, 1)] * len(rows),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(result.fun)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_cagrad_is_optimal_around_the_weighted_mean(tasks: int) -> None:
    for kind in ("regular", "conflicting"):
        j, p = jacobians(kind, 4, tasks), preferences(4, tasks, decades=1)
        p[0, 0] = 0
        solution = f.cagrad(j @ j.mT, rescale=False, preference=p)
        assert solution.solved.all()
        assert (solution.residual <= 1e-9).all()
        for rows, b, w in zip(j, p / p.sum(-1, keepdim=True), solution.weights, strict=True):
            d, mean = w @ rows, b @ rows
            assert (d - mean).norm() <= 0.4 * mean.norm() * (1 + 1e-9)
            size = (rows.norm() * mean.norm()).item()
            assert (rows @ d).amin().item() == pytest.approx(cagrad_value(rows, b, 0.4), abs=1e-6 * size)


@pytest.mark.parametrize("tasks", [3, 16, 40])
@pytest.mark.parametrize("kind", ["regular", "crowded", "conflicting", "opposite"])
def test_cagrad_duality_gap_is_zero(kind: str, tasks: int) -> None:
    gram, p = grams(kind, 20, tasks), preferences(20, tasks)
    solution = f.cagrad(gram, preference=p)
    assert solution.solved.all()
    assert (solution.residual <= 1e-6).all()
    mean = f.cagrad_weights(gram, alpha=0.0, preference=p)
    torch.testing.assert_close(mean, p / p.sum(-1, keepdim=True))


def test_upgrad_averages_projections() -> None:
    j, p = jacobians("conflicting", 6, 5), preferences(6, 5, decades=1)
    weights = f.upgrad_weights(j @ j.mT, preference=p)
    for rows, preference, w in zip(j, p, weights, strict=True):
        projected = [row + rows.T @ torch.from_numpy(nnls(rows.T.numpy(), -row.numpy())[0]) for row in rows]
        expected = (preference / preference.sum()) @ torch.stack(projected)
        torch.testing.assert_close(w @ rows, expected, rtol=0, atol=1e-9 * rows.norm().item())


@pytest.mark.parametrize("tasks", [2, 5, 10])
def test_upgrad_agrees_with_torchjd(tasks: int) -> None:
    for j, p in zip(jacobians("regular", 5, tasks), preferences(5, tasks, decades=1), strict=True):
        # torchjd does not normalise its preference vector.
        theirs = torchjd.UPGrad(pref_vector=p)(j) / p.sum()
        ours = f.upgrad_weights(j @ j.T, preference=p) @ j
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3 * theirs.norm().item())


@pytest.mark.parametrize("name", WEIGHTS)
def test_invalid_preferences_raise(name: str) -> None:
    gram = torch.eye(3).expand(2, 3, 3)
    with pytest.raises(ValueError, match=r"broadcast to shape \(2, 3\), got shape \(2,\)"):
        WEIGHTS[name](gram, preference=torch.ones(2))
    for value in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            WEIGHTS[name](gram, preference=torch.tensor([1.0, 2.0, value]))
