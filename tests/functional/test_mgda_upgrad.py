"""MGDA and UPGrad: optimality conditions, dense search and non-negative least squares."""

import itertools

import numpy as np
import pytest
import torch
from helpers.grams import DEPENDENT, KINDS, REGULAR, SIZES, cosines_and_norms, dependent, grams, jacobians, simplex_grid
from scipy.optimize import nnls
from torch import Tensor

import counterpoise.functional as f


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zero", "absent")])
def test_mgda_is_optimal(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.mgda(gram)
    w = solution.weights
    assert solution.solved.all()
    assert (w >= 0).all()
    torch.testing.assert_close(w.sum(-1), torch.ones(50, dtype=torch.float64))
    cosines, norms = cosines_and_norms(gram)
    x = w * norms
    slopes = (cosines @ x.unsqueeze(-1)).squeeze(-1)  # (Gw)_i / ‖g_i‖
    value = (x * slopes).sum(-1, keepdim=True)
    gap = (value / norms - slopes).amax(-1)
    size = x.norm(dim=-1)  # scale of the rounding error of the slopes
    assert (gap <= 1e-8 * size).all()
    assert (solution.residual <= 1e-8).all()
    if kind in ("regular", "conflicting"):
        products = (gram @ w.unsqueeze(-1)).squeeze(-1)
        value = (w * products).sum(-1)
        assert (value - products.amin(-1) <= 1e-8 * value).all()


@pytest.mark.parametrize("kind", KINDS[:6])
def test_mgda_is_at_least_as_short_as_a_dense_search(kind: str) -> None:
    gram, grid = grams(kind, 20, 3), simplex_grid(3, 60)
    value = torch.einsum("ki,bij,kj->bk", grid, gram, grid).amin(-1)
    w = f.mgda_weights(gram)
    ours = torch.einsum("bi,bij,bj->b", w, gram, w)
    assert (ours <= value + 1e-12 * gram.diagonal(dim1=-2, dim2=-1).amax(-1)).all()


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "absent"])
def test_upgrad_satisfies_its_kkt_conditions(kind: str, tasks: int) -> None:
    """Compare with brute force over active sets for T ≤ 3, and check that no conflict remains."""
    gram = grams(kind, 30, tasks)
    solution = f.upgrad(gram)
    assert solution.solved.all()
    assert (solution.residual <= 1e-6).all()
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    size = norms * (norms * solution.weights).sum(-1, keepdim=True)
    assert (products >= -1e-6 * size).all()
    if tasks <= 3 and kind in REGULAR[:2]:
        expected = torch.stack([upgrad_by_brute_force(g) for g in gram])
        torch.testing.assert_close(solution.weights, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize(("tasks", "rank", "noise"), DEPENDENT)
def test_dependent_gradients_match_least_squares(tasks: int, rank: int, noise: float) -> None:
    """UPGrad's projections and MGDA's shortest vector are non-negative least-squares problems."""
    j = dependent(tasks, rank, noise)
    upgrad, mgda = f.upgrad(j @ j.mT), f.mgda(j @ j.mT)
    assert upgrad.solved.all()
    assert mgda.solved.all()
    for rows, c, w in zip(j, upgrad.weights, mgda.weights, strict=True):
        across = rows.T.numpy()
        projected = [row + rows.T @ torch.from_numpy(nnls(across, -row.numpy())[0]) for row in rows]
        expected = torch.stack(projected).mean(0)
        torch.testing.assert_close(c @ rows, expected, rtol=0, atol=1e-6 * rows.norm().item())
        x = nnls(np.vstack((across, np.ones(tasks))), np.append(np.zeros(across.shape[0]), 1.0))[0]
        shortest = torch.from_numpy(x / x.sum()) @ rows
        torch.testing.assert_close(w @ rows, shortest, rtol=0, atol=1e-6 * rows.norm().item())


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [3, 8, 16, 32, 64])
def test_nearly_parallel_gradients(tasks: int) -> None:
    """In float32 their products differ only by rounding, so that many supports are equally good."""
    generator = torch.Generator().manual_seed(tasks)
    j = torch.randn(4, 1, 200, generator=generator) + 1e-4 * torch.randn(4, tasks, 200, generator=generator)
    for solution in (f.mgda(j @ j.mT), f.upgrad(j @ j.mT)):
        assert solution.solved.all()
        assert (solution.residual <= 1e-6).all()


def upgrad_by_brute_force(gram: Tensor) -> Tensor:
    """Return UPGrad's weights by trying all active sets for each projection."""
    tasks = len(gram)
    total = torch.zeros(tasks, dtype=torch.float64)
    for i in range(tasks):
        best = None
        for size in range(tasks + 1):
            for active in itertools.combinations(range(tasks), size):
                v = torch.zeros(tasks, dtype=torch.float64)
                v[i] = 1
                index = list(active)
                if index:
                    v[index] += torch.linalg.solve(gram[index][:, index], -gram[index, i])
                gains, moved = gram @ v, v - torch.eye(tasks, dtype=torch.float64)[i]
                if (moved >= -1e-12).all() and (gains >= -1e-9).all():
                    value = v @ gram @ v
                    best = (value, v) if best is None or value < best[0] else best
        assert best is not None
        total += best[1] / tasks
    return total


def test_upgrad_is_linear_under_scaling() -> None:
    """The aggregation A(diag(c) J) is linear in c > 0, the third property of Jacobian descent."""
    j = jacobians("conflicting", 1, 4)[0]

    def direction(c: Tensor) -> Tensor:
        scaled = c.unsqueeze(-1) * j
        return f.upgrad_weights(scaled @ scaled.T) @ scaled

    generator = torch.Generator().manual_seed(0)
    a, b = 10 ** torch.randn(2, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(direction(2 * a + 3 * b), 2 * direction(a) + 3 * direction(b), rtol=1e-7, atol=1e-9)
