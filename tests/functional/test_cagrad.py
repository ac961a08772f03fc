"""CAGrad compared with a dense search, its dual, and a general-purpose optimiser."""

import numpy as np
import pytest
import torch
from helpers.grams import DEPENDENT, KINDS, SIZES, dependent, grams, simplex_grid
from scipy.optimize import minimize
from torch import Tensor

import counterpoise.functional as f


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "absent"])
def test_value_is_at_most_the_dual_on_a_grid(kind: str, alpha: float) -> None:
    """The dual is an upper bound: no point of a grid on the simplex may be below the value of our direction."""
    gram, grid = grams(kind, 20, 3), simplex_grid(3, 60)
    solution = f.cagrad(gram, alpha=alpha, rescale=False)
    assert solution.solved.all()
    w = solution.weights
    mean = torch.full((3,), 1 / 3, dtype=torch.float64)
    size = torch.einsum("i,bij,j->b", mean, gram, mean).clamp_min(0).sqrt()
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = torch.einsum("bij,bj->bi", gram, w)
    rounding = norms * (norms * w.abs()).sum(-1, keepdim=True)
    reached = products.amin(-1)
    root = torch.einsum("ki,bij,kj->bk", grid, gram, grid).clamp_min(0).sqrt()
    dual = torch.einsum("ki,bij,j->bk", grid, gram, mean) + alpha * size.unsqueeze(-1) * root
    assert ((products - 1e-12 * rounding).amin(-1) <= dual.amin(-1)).all()
    off = w - mean
    length = torch.einsum("bi,bij,bj->b", off, gram, off).clamp_min(0).sqrt()
    assert (length <= alpha * size * (1 + 1e-6) + 1e-9 * (norms * w.abs()).sum(-1)).all()
    if kind in ("regular", "conflicting", "duplicated"):  # the bound is nearly attained on a fine grid
        assert (dual.amin(-1) - reached <= 0.05 * dual.amin(-1).abs() + 0.02 * size**2).all()


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zero", "absent")])
def test_duality_gap_is_zero(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.cagrad(gram, alpha=0.4)
    assert solution.solved.all()
    assert (solution.residual <= 1e-6).all()


def cagrad_value(j: Tensor, alpha: float) -> float:
    """Return the best min_i ⟨g_i, d⟩, computed from the dual with scipy."""
    rows, mean = j.numpy(), j.mean(0).numpy()
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
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9])
def test_dependent_gradients(alpha: float) -> None:
    rows = [[3, 1], [3, -4], [5, 1], [2, 4], [4, -5], [2, 3], [2, 4]]
    generator = torch.Generator().manual_seed(0)
    random = [torch.randint(-4, 7, (tasks, rank), generator=generator) for tasks in (4, 6, 8) for rank in (1, 2, 3)]
    for j in (torch.tensor(rows).double(), *(j.double() for j in random)):
        solution = f.cagrad(j @ j.T, alpha=alpha, rescale=False)
        d, mean = solution.weights @ j, j.mean(0)
        assert solution.solved
        assert solution.residual <= 1e-8
        assert (d - mean).norm() <= alpha * mean.norm() * (1 + 1e-9)
        assert (j @ d).amin().item() == pytest.approx(
            cagrad_value(j, alpha), abs=1e-6 * (j.norm() * mean.norm()).item()
        )


@pytest.mark.parametrize(("tasks", "rank", "noise"), DEPENDENT)
def test_many_dependent_gradients(tasks: int, rank: int, noise: float) -> None:
    """Check the value and the distance of the direction itself, in addition to the residual."""
    j = dependent(tasks, rank, noise)
    j = j + 0.5 * j[:, :1]  # most have a common descent direction
    solution = f.cagrad(j @ j.mT, rescale=False)
    assert solution.solved.all()
    assert (solution.residual <= 1e-8).all()
    for rows, c in zip(j, solution.weights, strict=True):
        reached, mean = (rows @ (c @ rows)).amin().item(), rows.mean(0)
        assert (c @ rows - mean).norm() <= 0.4 * mean.norm() * (1 + 1e-9)
        assert reached >= cagrad_value(rows, 0.4) - 3e-4 * (rows.norm(dim=1).amin() * mean.norm()).item()


@pytest.mark.usefixtures("solver_mode")
def test_direction_is_continuous_near_stationarity() -> None:
    """As two gradients become opposite, the solution on the sphere changes over to the nearest direction."""
    offs = torch.logspace(-7, -1, 600, dtype=torch.float64)
    j = torch.tensor([[1.0, 0.3], [-1.0, -0.3], [-0.1, 1.0]], dtype=torch.float64).repeat(600, 1, 1)
    j[:, 1, 1] += offs
    d = (f.cagrad_weights(j @ j.mT, rescale=False).unsqueeze(-2) @ j).squeeze(-2)
    radius = 0.4 * j.mean(1).norm(dim=-1)
    assert ((d[1:] - d[:-1]).norm(dim=-1) <= 0.1 * radius[1:]).all()
    torch.testing.assert_close(d[0] @ j[0, 0], torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-6)  # no conflict
    torch.testing.assert_close((d - j.mean(1)).norm(dim=-1)[-1], radius[-1])


def test_zero_radius_or_zero_gradients_give_the_mean() -> None:
    for gram, alpha in ((grams("crowded", 5, 4), 0.0), (torch.zeros(3, 4, 4), 0.4), (torch.zeros(3, 4, 4), 0.0)):
        solution = f.cagrad(gram, alpha=alpha, rescale=False)
        assert solution.solved.all()
        assert (solution.residual == 0).all()
        torch.testing.assert_close(solution.weights, torch.full_like(solution.weights, 0.25))


@pytest.mark.parametrize("distance", [1e-5, 1e-6, 1e-7])
def test_nearly_opposite_gradients_are_solved(distance: float) -> None:
    rows = torch.randn(300, 3, 8, dtype=torch.float64)
    rows[:, -1] = -rows[:, 0] + distance * rows[:, -1]
    solution = f.cagrad(rows @ rows.mT, alpha=0.4)
    assert solution.solved.all()
    assert solution.residual.max() < 1e-6
