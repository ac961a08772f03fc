"""Every method on Gram matrices against its definition: fixed points, optimality conditions, brute force, replays."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from grams import KINDS, REGULAR, grams, jacobians, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from torch import Tensor

import counterpoise.functional as f

SIZES = (1, 2, 3, 5, 8, 16)


def identity_order(gram: Tensor) -> Tensor:
    """Row i visits 0, 1, 2, …: no draw."""
    return torch.arange(gram.shape[-1]).expand(gram.shape)


SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "pcgrad": lambda gram: f.pcgrad_weights(gram, identity_order(gram)),
    "gradvac": lambda gram: f.gradvac_weights(gram, torch.full_like(gram, 0.3), identity_order(gram))[0],
    "mgda": f.mgda_weights,
    "cagrad": f.cagrad_weights,
    "imtl-g": f.imtl_g_weights,
    "nash": f.nash_weights,
    "fairgrad": lambda gram: f.fairgrad_weights(gram, alpha=2.0),
    "aligned-mtl": f.aligned_mtl_weights,
    "upgrad": f.upgrad_weights,
    "sdmgrad": lambda gram: f.sdmgrad_weights(gram, torch.full(gram.shape[:-1], 1 / gram.shape[-1]))[0],
    "gradnorm-proxy": f.gradnorm_proxy_weights,
}


@pytest.fixture(params=["looking", "blind"])
def sight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to solve: where values may be looked at, and, as on a device, where they may not."""
    if request.param == "blind":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def dependent(tasks: int, rank: int, noise: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Six Jacobians of a rank below T, or of full rank by `noise` alone."""
    generator = torch.Generator().manual_seed(tasks + rank)
    j = torch.randn(6, tasks, rank, generator=generator, dtype=torch.float64)
    rest = torch.randn(6, tasks, tasks, generator=generator, dtype=torch.float64)
    return torch.cat((j, noise * rest), -1).to(dtype)


DEPENDENT = [(4, 2, 0.0), (8, 4, 1e-4), (10, 6, 0.0), (16, 8, 0.0), (16, 8, 1e-4), (32, 16, 0.0), (32, 16, 1e-4)]


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", REGULAR)
def test_nash_is_the_fixed_point(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.nash(gram)
    assert solution.solved.all()
    assert (solution.weights > 0).all()
    cosines, norms = unit(gram)
    x = solution.weights * norms  # α_i (Gα)_i without the scales
    torch.testing.assert_close(x * (cosines @ x.unsqueeze(-1)).squeeze(-1), torch.ones_like(x), rtol=1e-10, atol=0)
    assert solution.residual.max() < 1e-10


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("tasks", SIZES)
def test_fairgrad_is_the_fixed_point(tasks: int, alpha: float) -> None:
    gram = grams("conflicting", 50, tasks)
    solution = f.fairgrad(gram, alpha=alpha)
    assert solution.solved.all()
    left = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(left, solution.weights ** (-1 / alpha), rtol=1e-10, atol=0)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("alpha", [0.02, 0.01, 0.003])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_fairgrad_of_small_alpha(alpha: float, scale: float) -> None:
    """Nearly equal weights: w^{−1/α} must not overflow on the way there."""
    gram = scale * grams("regular", 20, 4)
    solution = f.fairgrad(gram, alpha=alpha)
    assert solution.solved.all()
    assert (solution.residual <= 1e-8).all()
    left = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(solution.weights, left**-alpha, rtol=1e-10, atol=0)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("off", [1e-4, 1e-5, 1e-6])
def test_nash_of_all_but_opposite_gradients_in_float32(off: float) -> None:
    gram = torch.tensor([[1.0, 3 * (off - 1)], [3 * (off - 1), 9.0]])
    solution = f.nash(gram)
    assert solution.solved
    w, given = solution.weights.double(), gram.double()
    rounding = 4e-7 * w[0] ** 2  # of the weights, which cancel
    assert (w * (given @ w) - 1).abs().amax() <= rounding
    assert rounding < 0.5
    torch.testing.assert_close(solution.weights, f.nash_weights(gram))


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_nash_says_where_no_solution_exists(tasks: int) -> None:
    opposite = grams("opposite", 20, tasks)
    solution = f.nash(opposite)
    assert not solution.solved.any()
    assert (solution.residual > 1e-3).all()
    torch.testing.assert_close(solution.weights, f.mgda_weights(opposite))
    zero = f.nash(grams("zero", 20, tasks))
    assert zero.solved.all()
    assert (zero.weights[:, 0] == 0).all()


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zero", "absent")])
def test_mgda_is_optimal(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.mgda(gram)
    w = solution.weights
    assert solution.solved.all()
    assert (w >= 0).all()
    torch.testing.assert_close(w.sum(-1), torch.ones(50, dtype=torch.float64))
    cosines, norms = unit(gram)
    x = w * norms
    slopes = (cosines @ x.unsqueeze(-1)).squeeze(-1)  # (Gw)_i / ‖g_i‖
    value = (x * slopes).sum(-1, keepdim=True)
    gap = (value / norms - slopes).amax(-1)
    size = x.norm(dim=-1)  # what rounding of the slopes is relative to
    assert (gap <= 1e-8 * size).all()
    assert (solution.residual <= 1e-8).all()
    if kind in ("regular", "conflicting"):
        products = (gram @ w.unsqueeze(-1)).squeeze(-1)
        value = (w * products).sum(-1)
        assert (value - products.amin(-1) <= 1e-8 * value).all()


def simplex_grid(tasks: int, steps: int) -> Tensor:
    points = [p for p in itertools.product(range(steps + 1), repeat=tasks) if sum(p) == steps]
    return torch.tensor(points, dtype=torch.float64) / steps


@pytest.mark.parametrize("kind", KINDS[:6])
def test_mgda_beats_a_dense_search(kind: str) -> None:
    gram, grid = grams(kind, 20, 3), simplex_grid(3, 60)
    value = torch.einsum("ki,bij,kj->bk", grid, gram, grid).amin(-1)
    w = f.mgda_weights(gram)
    ours = torch.einsum("bi,bij,bj->b", w, gram, w)
    assert (ours <= value + 1e-12 * gram.diagonal(dim1=-2, dim2=-1).amax(-1)).all()


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "absent"])
def test_cagrad_beats_a_dense_search(kind: str, alpha: float) -> None:
    """The dual bounds the primal: no point of a fine grid on the simplex may lie below what our direction reaches."""
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
    if kind in ("regular", "conflicting", "duplicated"):  # and the finest grid comes close
        assert (dual.amin(-1) - reached <= 0.05 * dual.amin(-1).abs() + 0.02 * size**2).all()


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zero", "absent")])
def test_cagrad_has_no_duality_gap(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.cagrad(gram, alpha=0.4)
    assert solution.solved.all()
    assert (solution.residual <= 1e-6).all()


def cagrad_value(j: Tensor, alpha: float) -> float:
    """The best min_i ⟨g_i, d⟩ by scipy, from the dual over the simplex."""
    rows, mean = j.numpy(), j.mean(0).numpy()
    radius = alpha * float(np.linalg.norm(mean))
    found = minimize(
        lambda w: (w @ rows) @ mean + radius * np.sqrt(np.square(w @ rows).sum() + 1e-16),
        np.full(len(rows), 1 / len(rows)),
        bounds=[(0, 1)] * len(rows),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(found.fun)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9])
def test_cagrad_is_optimal_for_dependent_gradients(alpha: float) -> None:
    given = [[3, 1], [3, -4], [5, 1], [2, 4], [4, -5], [2, 3], [2, 4]]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(-4, 7, (tasks, rank), generator=generator) for tasks in (4, 6, 8) for rank in (1, 2, 3)]
    for j in (torch.tensor(given).double(), *(j.double() for j in drawn)):
        solution = f.cagrad(j @ j.T, alpha=alpha, rescale=False)
        d, mean = solution.weights @ j, j.mean(0)
        assert solution.solved
        assert solution.residual <= 1e-8
        assert (d - mean).norm() <= alpha * mean.norm() * (1 + 1e-9)
        assert (j @ d).amin().item() == pytest.approx(
            cagrad_value(j, alpha), abs=1e-6 * (j.norm() * mean.norm()).item()
        )


@pytest.mark.parametrize(("tasks", "rank", "noise"), DEPENDENT)
def test_cagrad_of_many_dependent_gradients(tasks: int, rank: int, noise: float) -> None:
    """The residual holds the duality gap; here the direction's own value and its distance stand for it."""
    j = dependent(tasks, rank, noise)
    j = j + 0.5 * j[:, :1]  # mostly a common descent direction
    solution = f.cagrad(j @ j.mT, rescale=False)
    assert solution.solved.all()
    assert (solution.residual <= 1e-8).all()
    for rows, c in zip(j, solution.weights, strict=True):
        reached, mean = (rows @ (c @ rows)).amin().item(), rows.mean(0)
        assert (c @ rows - mean).norm() <= 0.4 * mean.norm() * (1 + 1e-9)
        assert reached >= cagrad_value(rows, 0.4) - 3e-4 * (rows.norm(dim=1).amin() * mean.norm()).item()


@pytest.mark.usefixtures("sight")
def test_cagrad_has_no_jumps_near_stationarity() -> None:
    """Two gradients turn until they are opposite: what is best on the sphere becomes the nearest direction."""
    offs = torch.logspace(-7, -1, 600, dtype=torch.float64)
    j = torch.tensor([[1.0, 0.3], [-1.0, -0.3], [-0.1, 1.0]], dtype=torch.float64).repeat(600, 1, 1)
    j[:, 1, 1] += offs
    d = (f.cagrad_weights(j @ j.mT, rescale=False).unsqueeze(-2) @ j).squeeze(-2)
    radius = 0.4 * j.mean(1).norm(dim=-1)
    assert ((d[1:] - d[:-1]).norm(dim=-1) <= 0.1 * radius[1:]).all()
    torch.testing.assert_close(d[0] @ j[0, 0], torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-6)  # no conflict
    torch.testing.assert_close((d - j.mean(1)).norm(dim=-1)[-1], radius[-1])


def test_cagrad_without_a_ball_or_without_gradients_is_the_mean() -> None:
    for gram, alpha in ((grams("crowded", 5, 4), 0.0), (torch.zeros(3, 4, 4), 0.4), (torch.zeros(3, 4, 4), 0.0)):
        solution = f.cagrad(gram, alpha=alpha, rescale=False)
        assert solution.solved.all()
        assert (solution.residual == 0).all()
        torch.testing.assert_close(solution.weights, torch.full_like(solution.weights, 0.25))


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "absent"])
def test_upgrad_satisfies_its_kkt_conditions(kind: str, tasks: int) -> None:
    """Each projection found again by brute force over active sets (T ≤ 3), and no conflict in the end."""
    gram = grams(kind, 30, tasks)
    solution = f.upgrad(gram)
    assert solution.solved.all()
    assert (solution.residual <= 1e-6).all()
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    size = norms * (norms * solution.weights).sum(-1, keepdim=True)
    assert (products >= -1e-6 * size).all()
    if tasks <= 3 and kind in REGULAR[:2]:
        expected = torch.stack([brute_upgrad(g) for g in gram])
        torch.testing.assert_close(solution.weights, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize(("tasks", "rank", "noise"), DEPENDENT)
def test_dependent_gradients_as_least_squares(tasks: int, rank: int, noise: float) -> None:
    """UPGrad's projections and MGDA's shortest vector are non-negative least squares, which scipy solves, too."""
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


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("tasks", [3, 8, 16, 32, 64])
def test_all_but_parallel_gradients(tasks: int) -> None:
    """In float32 their products differ by rounding alone, and every support seems as good as any other."""
    generator = torch.Generator().manual_seed(tasks)
    j = torch.randn(4, 1, 200, generator=generator) + 1e-4 * torch.randn(4, tasks, 200, generator=generator)
    for solution in (f.mgda(j @ j.mT), f.upgrad(j @ j.mT)):
        assert solution.solved.all()
        assert (solution.residual <= 1e-6).all()


def brute_upgrad(gram: Tensor) -> Tensor:
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


@pytest.mark.parametrize("tasks", [2, 3, 7])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "duplicated", "opposite", "zero"])
def test_pcgrad_is_the_replay_in_gradient_space(kind: str, tasks: int) -> None:
    j = jacobians(kind, 10, tasks)
    order = torch.rand(10, tasks, tasks, generator=torch.Generator().manual_seed(1)).argsort(-1)
    w = f.pcgrad_weights(j @ j.mT, order)
    for b in range(10):
        total = torch.zeros_like(j[b, 0])
        for i in range(tasks):
            g = j[b, i].clone()
            for k in order[b, i].tolist():
                dot = g @ j[b, k]
                if k != i and dot < 0:
                    g = g - dot / (j[b, k] @ j[b, k]) * j[b, k]
            total += g
        torch.testing.assert_close(w[b] @ j[b], total, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("tasks", [2, 3, 7])
def test_gradvac_is_the_replay_and_reaches_its_similarity(tasks: int) -> None:
    j = jacobians("conflicting", 10, tasks)
    generator = torch.Generator().manual_seed(2)
    phi = torch.rand(10, tasks, tasks, generator=generator, dtype=torch.float64) * 0.8 - 0.2
    order = torch.rand(10, tasks, tasks, generator=generator).argsort(-1)
    w, new = f.gradvac_weights(j @ j.mT, phi, order, beta=0.3)
    for b in range(10):
        total, expected = torch.zeros_like(j[b, 0]), phi[b].clone()
        for i in range(tasks):
            g = j[b, i].clone()
            for k in order[b, i].tolist():
                if k == i:
                    continue
                other, target = j[b, k], phi[b, i, k]
                cosine = g @ other / g.norm() / other.norm()
                if cosine < target:
                    gap = target * (1 - cosine**2).sqrt() - cosine * (1 - target**2).sqrt()
                    g = g + g.norm() * gap / (other.norm() * (1 - target**2).sqrt()) * other
                    assert (g @ other / g.norm() / other.norm()).item() == pytest.approx(target.item(), abs=1e-9)
                expected[i, k] = 0.7 * target + 0.3 * cosine
            total += g
        torch.testing.assert_close(w[b] @ j[b], total, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(new[b], expected)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [*REGULAR, "duplicated"])
def test_imtl_g_projects_equally(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.imtl_g(gram)
    cosines, norms = unit(gram)
    x = solution.weights * norms
    projections = (cosines @ x.unsqueeze(-1)).squeeze(-1)
    spread = projections.amax(-1) - projections.amin(-1)
    assert (spread <= 1e-9 * x.norm(dim=-1)).all()
    total = solution.weights.sum(-1)
    sums = torch.where(solution.solved, total, solution.weights.abs().sum(-1))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-6, atol=0)
    assert (projections >= -1e-9 * x.norm(dim=-1, keepdim=True)).all()  # never an ascent direction


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize(
    ("tasks", "rank", "noise"), [(3, 2, 0.0), (5, 3, 0.0), (8, 4, 0.0), (8, 4, 1e-9), (16, 8, 0.0)]
)
def test_imtl_g_is_the_pseudo_inverse_for_dependent_gradients(tasks: int, rank: int, noise: float) -> None:
    j = dependent(tasks, rank, noise)
    j = j * torch.logspace(-2, 2, tasks, dtype=torch.float64).unsqueeze(-1)
    gram = j @ j.mT
    solution = f.imtl_g(gram)
    assert not solution.solved.any()  # no direction but zero projects equally on all
    cosines, norms = unit(gram)
    expected = torch.linalg.pinv(cosines, rtol=1e-10, hermitian=True).sum(-1) / norms
    total, size = expected.sum(-1, keepdim=True), expected.abs().sum(-1, keepdim=True)
    expected = expected / torch.where(total > 1e-6 * size, total, size)
    torch.testing.assert_close(solution.weights, expected, rtol=1e-6, atol=1e-8)
    for one, each in zip(gram, expected, strict=True):
        torch.testing.assert_close(f.imtl_g_weights(one), each, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_imtl_g_steps_where_one_gradient_is_the_sum_of_others(dtype: torch.dtype) -> None:
    j = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=dtype)
    third = torch.full((3,), 1 / 3, dtype=dtype)
    torch.testing.assert_close(f.imtl_g_weights(j @ j.T), third)
    opposite = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(f.imtl_g_weights(opposite @ opposite.T) @ opposite, torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_aligned_mtl_has_condition_number_one(tasks: int) -> None:
    j = jacobians("regular", 20, tasks)
    gram = j @ j.mT
    values = torch.linalg.eigvalsh(gram)
    # BJ has orthogonal rows of length √λ_min; w = B·1 is read off with B = ∂w/∂1, one task present at a time.
    w = f.aligned_mtl_weights(gram)
    direction = (w.unsqueeze(-2) @ j).squeeze(-2)
    expected = (tasks * values[:, 0]).sqrt()  # the sum of T orthogonal vectors of that length
    torch.testing.assert_close(direction.norm(dim=-1), expected)
    inverse_root = torch.linalg.inv(torch.stack([sqrt(g) for g in gram])) * values[:, :1, None].sqrt()
    torch.testing.assert_close(w, inverse_root.sum(-1))
    aligned = inverse_root @ j
    torch.testing.assert_close(torch.linalg.cond(aligned), torch.ones(20, dtype=torch.float64))
    singular = grams("duplicated", 5, 4)
    assert f.aligned_mtl_weights(singular).isfinite().all()


def sqrt(matrix: Tensor) -> Tensor:
    """The square root of a matrix by Newton's iteration (Denman and Beavers)."""
    y, z = matrix, torch.eye(len(matrix), dtype=matrix.dtype)
    for _ in range(60):
        y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
    return y


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_sdmgrad_converges_to_its_minimum(tasks: int) -> None:
    gram, lam = grams("conflicting", 10, tasks), 0.3
    w = torch.full((10, tasks), 1 / tasks, dtype=torch.float64)
    weights, w = f.sdmgrad_weights(gram, w, lam=lam, lr=0.3, momentum=0.0, iterations=4000)
    torch.testing.assert_close(weights, (w + lam / tasks) / (1 + lam))
    slopes = (gram @ (w + lam / tasks).unsqueeze(-1)).squeeze(-1)
    gap = (w * slopes).sum(-1) - slopes.amin(-1)
    assert (gap <= 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1)).all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_projection_on_the_simplex_is_the_nearest_point(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    p = f.project_on_simplex(x, torch.ones(len(values), dtype=torch.bool))
    assert p.sum().item() == pytest.approx(1)
    assert (p >= 0).all()
    # Optimality: x − p is the same number on the support and no larger elsewhere.
    shift = (x - p)[p > 0]
    assert shift.max() - shift.min() < 1e-9
    assert ((x - p)[p == 0] <= shift.min() + 1e-9).all()


def test_gradnorm_gradient_is_the_derivative() -> None:
    w = torch.tensor([0.5, 1.2, 1.3], dtype=torch.float64, requires_grad=True)
    norms, losses = torch.tensor([2.0, 0.3, 5.0]).double(), torch.tensor([0.5, 3.0, 1.0]).double()
    first = torch.tensor([1.0, 2.0, 4.0]).double()
    rate = losses / first / (losses / first).mean()
    target = ((w * norms).mean() * rate**1.5).detach()
    (w * norms - target).abs().sum().backward()
    ours = f.gradnorm_gradient(w, (w * norms).detach(), losses, first, alpha=1.5)
    torch.testing.assert_close(ours, w.grad)


@pytest.mark.parametrize("tasks", [2, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SOLVERS)
def test_finite_batched_and_precise_enough(name: str, kind: str, tasks: int) -> None:
    solve = SOLVERS[name]
    gram = grams(kind, 12, tasks)
    together = solve(gram)
    assert together.isfinite().all()
    assert together.dtype == torch.float64
    for one, gram_of_one in zip(together, gram, strict=True):
        off = solve(gram_of_one) - one  # compared as directions: of a singular matrix many weights make the same one
        known = torch.nan_to_num(gram_of_one)
        size = (known.diagonal().sqrt() * one.abs()).sum()
        assert (off @ known @ off).clamp_min(0).sqrt() <= 1e-7 * size + 1e-12
    torch.testing.assert_close(solve(gram.view(3, 4, tasks, tasks)), together.view(3, 4, tasks), rtol=1e-9, atol=1e-12)
    assert solve(gram.float()).isfinite().all()
    assert solve(gram.float()).dtype == torch.float32
    if kind == "absent":
        for one, gram_of_one in zip(together, gram, strict=True):
            here = gram_of_one.diagonal().isfinite()
            assert (one[~here] == 0).all()
            torch.testing.assert_close(one[here], solve(gram_of_one[here][:, here]), rtol=1e-7, atol=1e-9)


ANY = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-40, 1e300, -1e300, torch.inf, -torch.inf, torch.nan])


@settings(deadline=None, max_examples=60)
@given(tasks=st.integers(1, 5), data=st.data())
@pytest.mark.parametrize("name", SOLVERS)
def test_whatever_the_matrix_the_weights_are_finite(name: str, tasks: int, data: st.DataObject) -> None:
    """Overflows, underflows and matrices that are the Gram matrix of nothing: no error, no NaN."""
    entries = data.draw(st.lists(ANY, min_size=tasks * tasks, max_size=tasks * tasks))
    gram = torch.tensor(entries, dtype=torch.float64).view(tasks, tasks)
    for given_as in (gram, (gram + gram.mT) / 2, gram.float(), torch.stack((gram, torch.eye(tasks)))):
        weights = SOLVERS[name](given_as)
        assert weights.isfinite().all()
        assert (weights[given_as.diagonal(dim1=-2, dim2=-1).isnan()] == 0).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 8), kind=st.sampled_from(KINDS[:4]))
def test_surgery_is_equivariant_with_its_orders(seed: int, tasks: int, kind: str) -> None:
    """PCGrad and GradVac with tasks relabelled, and in the same order among them."""
    generator = torch.Generator().manual_seed(seed)
    j, relabelled = jacobians(kind, 1, tasks, seed)[0], torch.randperm(tasks, generator=generator)
    gram = j @ j.T
    order = torch.rand(tasks, tasks, generator=generator).argsort(-1)
    place = relabelled.argsort()  # where a task went
    there = place[order[relabelled]]
    phi = 0.5 * torch.rand(tasks, tasks, generator=generator, dtype=torch.float64)
    moved, moved_phi = gram[relabelled][:, relabelled], phi[relabelled][:, relabelled]
    for w, other in (
        (f.pcgrad_weights(gram, order), f.pcgrad_weights(moved, there)),
        (f.gradvac_weights(gram, phi, order)[0], f.gradvac_weights(moved, moved_phi, there)[0]),
    ):
        torch.testing.assert_close(w[relabelled], other, rtol=1e-6, atol=1e-9 * w.abs().max().item())


PERMUTABLE = [name for name in SOLVERS if name not in ("pcgrad", "gradvac")]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 8), kind=st.sampled_from(KINDS[:4]))
@pytest.mark.parametrize("name", PERMUTABLE)
def test_permutation_equivariance(name: str, seed: int, tasks: int, kind: str) -> None:
    """Relabelling the tasks relabels the weights; where these are not unique, the direction stays."""
    if name == "aligned-mtl" and kind == "scaled":
        kind = "regular"  # eigenvalues 48 decades apart are beyond float64, whoever computes them
    j = jacobians(kind, 1, tasks, seed)[0]
    order = torch.randperm(tasks, generator=torch.Generator().manual_seed(seed))
    w, permuted = SOLVERS[name](j @ j.T), SOLVERS[name](j[order] @ j[order].T)
    direction, other = w @ j, permuted @ j[order]
    scale = (w.abs().unsqueeze(-1) * j.abs()).sum(0).max().item()
    torch.testing.assert_close(direction, other, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("tasks", [2, 5])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "crowded"])
@pytest.mark.parametrize("name", ["mgda", "upgrad", "nash", "imtl-g"])
def test_no_conflict_where_it_is_promised(name: str, kind: str, tasks: int) -> None:
    if (name, kind) == ("imtl-g", "crowded"):
        kind = "duplicated"  # otherwise nothing is promised for dependent gradients
    gram = grams(kind, 40, tasks)
    w = SOLVERS[name](gram)
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = (gram @ w.unsqueeze(-1)).squeeze(-1)
    assert (products >= -1e-7 * norms * (norms * w.abs()).sum(-1, keepdim=True)).all()


def direction(name: str, j: Tensor) -> Tensor:
    return SOLVERS[name](j @ j.T) @ j


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 6), decades=st.floats(-6, 6))
def test_scaling_one_task(seed: int, tasks: int, decades: float) -> None:
    """What each paper says of a task whose loss is multiplied by c."""
    j = jacobians("conflicting", 1, tasks, seed)[0]
    c = 10**decades
    scaled = j.clone()
    scaled[0] *= c
    nash = direction("nash", j)
    torch.testing.assert_close(direction("nash", scaled), nash, rtol=1e-6, atol=1e-6 * nash.norm().item())  # invariant
    d = direction("imtl-g", scaled)  # equal projections whatever the scales, so the same line
    other = direction("imtl-g", j)
    assert torch.nn.functional.cosine_similarity(d, other, dim=0).abs().item() == pytest.approx(1, abs=1e-6)


def test_upgrad_is_linear_under_scaling() -> None:
    """Jacobian descent's third property: c ↦ A(diag(c) J) is linear."""
    j = jacobians("conflicting", 1, 4)[0]

    def at(c: Tensor) -> Tensor:
        scaled = c.unsqueeze(-1) * j
        return f.upgrad_weights(scaled @ scaled.T) @ scaled

    generator = torch.Generator().manual_seed(0)
    a, b = 10 ** torch.randn(2, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(at(2 * a + 3 * b), 2 * at(a) + 3 * at(b), rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("sight")
@pytest.mark.parametrize("name", SOLVERS)
def test_an_empty_batch_has_an_empty_answer(name: str) -> None:
    assert SOLVERS[name](torch.zeros(2, 0, 3, 3)).shape == (2, 0, 3)
    if name in ("mgda", "cagrad", "nash", "upgrad"):
        solution = getattr(f, name)(torch.zeros(0, 3, 3))
        assert [part.shape for part in solution] == [(0, 3), (0,), (0,)]


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"shape \(…, T, T\), got \(3, 4\)"):
        f.mgda_weights(torch.zeros(3, 4))


@pytest.mark.parametrize("distance", [3e-3, 1e-3, 1e-4])
def test_imtl_g_of_dependent_gradients_is_the_pseudo_inverse_alone_and_in_company(distance: float) -> None:
    rows = torch.randn(3, 50, dtype=torch.float64)
    rows[2] = 2 * rows[0] + distance * rows[2]
    gram = (rows @ rows.mT).float()
    norms = gram.double().diagonal().sqrt()
    cosines = gram.double() / torch.outer(norms, norms)
    expected = torch.linalg.pinv(cosines, atol=1e-5, rtol=0.0, hermitian=True).sum(-1) / norms
    expected = (expected / expected.sum()).float()
    opposite = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for found in (f.imtl_g_weights(gram), f.imtl_g_weights(torch.stack((gram, opposite)))[0]):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distance", [1e-5, 1e-6, 1e-7])
def test_cagrad_is_solved_for_all_but_opposite_gradients(distance: float) -> None:
    rows = torch.randn(300, 3, 8, dtype=torch.float64)
    rows[:, -1] = -rows[:, 0] + distance * rows[:, -1]
    solution = f.cagrad(rows @ rows.mT, alpha=0.4)
    assert solution.solved.all()
    assert solution.residual.max() < 1e-6


def test_a_matrix_that_rounding_makes_singular_is_solved_and_one_with_nan_is_not() -> None:
    above = 1 + 8 * 2**-23  # the ridge makes this one exactly singular
    singular = torch.tensor([[1.0, above], [above, 1.0]])
    broken = torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]])
    for solve in (f.mgda, f.cagrad, f.upgrad):
        assert solve(singular).solved
        assert solve(singular).weights.sum() > 0.9
        assert not solve(broken).solved


def test_what_a_solution_says_can_be_used_in_a_graph() -> None:
    gram = torch.eye(2)
    for solve in (f.mgda, f.cagrad, f.upgrad, f.nash, f.fairgrad, f.imtl_g):
        value = torch.ones((), requires_grad=True)
        torch.where(solve(gram).solved, value, 0.0).backward()
        assert value.grad == 1.0


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_a_matrix_that_is_not_square_is_refused(shape: tuple[int, int]) -> None:
    for weigh in (f.mgda_weights, f.cagrad_weights, f.nash_weights, f.imtl_g_weights, f.upgrad_weights):
        with pytest.raises(ValueError, match="a Gram matrix has shape"):
            weigh(torch.ones(shape))
