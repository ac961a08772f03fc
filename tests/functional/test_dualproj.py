"""DualProj: its KKT conditions, non-negative least squares, and torchjd."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.grams import DEPENDENT, KINDS, SIZES, dependent, grams, jacobians
from scipy.optimize import nnls
from torch import Tensor

import counterpoise.functional as f


def kkt_violation(gram: Tensor, mean: Tensor, w: Tensor) -> float:
    """Return the largest violation of x = w − mean ≥ 0, Gw ≥ 0 and xᵀGw = 0, for unit gradients and a unit mean."""
    norms = gram.diagonal().sqrt()
    size = (norms * mean).amax()
    x, products = norms * (w - mean) / size, gram @ w / (norms * size)
    return torch.stack(((-x).amax(), (-products).amax(), (x * products).abs().amax())).amax().item()


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zero", "absent")])
def test_kkt_conditions(kind: str, tasks: int) -> None:
    gram = grams(kind, 10, tasks)
    preference = torch.rand(10, tasks, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for p in (None, preference):
        solution = f.dualproj(gram, preference=p)
        assert solution.solved.all()
        assert (solution.residual <= 1e-8).all()
        means = torch.full_like(preference, 1 / tasks) if p is None else p / p.sum(-1, keepdim=True)
        for one, mean, w in zip(gram, means, solution.weights, strict=True):
            assert kkt_violation(one, mean, w) <= 1e-8
        torch.testing.assert_close(f.dualproj_weights(gram, preference=p), solution.weights, rtol=0, atol=0)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize(("tasks", "rank", "noise"), DEPENDENT)
def test_dependent_gradients_match_least_squares(tasks: int, rank: int, noise: float) -> None:
    j = dependent(tasks, rank, noise)
    solution = f.dualproj(j @ j.mT)
    assert solution.solved.all()
    for rows, w in zip(j, solution.weights, strict=True):
        mean = rows.mean(0)
        expected = mean + rows.T @ torch.from_numpy(nnls(rows.T.numpy(), -mean.numpy())[0])
        torch.testing.assert_close(w @ rows, expected, rtol=0, atol=1e-6 * rows.norm().item())


def test_torchjd_agrees_or_violates_the_kkt_conditions_more() -> None:
    generator = torch.Generator().manual_seed(0)
    agreed = 0
    for count in range(60):
        tasks = 2 + count % 15
        j = torch.randn(tasks, 40, generator=generator, dtype=torch.float64)
        if count % 2:
            j = j * 10 ** torch.randn(tasks, 1, generator=generator, dtype=torch.float64)
            j[-1] = j[0] + 0.1 * j[-1]
        if count % 3 == 0:
            j = j - 1.2 * j.mean(0)
        p = torch.rand(tasks, generator=generator, dtype=torch.float64)
        mean = p / p.sum()  # torchjd uses its preference vector as it is
        gram = j @ j.T
        ours, theirs = f.dualproj_weights(gram, preference=p), torchjd.DualProj(pref_vector=mean)(j)
        if (ours @ j - theirs).norm() <= 1e-3 * theirs.norm():
            agreed += 1
        weights = torchjd.DualProjWeighting(pref_vector=mean)(gram)
        assert kkt_violation(gram, mean, ours) <= max(1e-12, kkt_violation(gram, mean, weights))
    assert agreed >= 20  # torchjd regularises


def test_mean_is_kept_if_it_conflicts_with_no_task() -> None:
    j = jacobians("regular", 5, 4).abs()
    weights = f.dualproj_weights(j @ j.mT)
    torch.testing.assert_close(weights, torch.full_like(weights, 0.25), rtol=0, atol=0)


def test_absent_tasks_and_zero_gradients() -> None:
    gram = grams("absent", 6, 4)
    weights = f.dualproj_weights(gram)
    for one, w in zip(gram, weights, strict=True):
        present = one.diagonal().isfinite()
        assert (w[~present] == 0).all()
        torch.testing.assert_close(w[present], f.dualproj_weights(one[present][:, present]))
    zeros = f.dualproj(torch.zeros(3, 4, 4))
    assert zeros.solved.all()
    torch.testing.assert_close(zeros.weights, torch.full((3, 4), 0.25))


def test_scaling_all_gradients_keeps_the_weights() -> None:
    gram = grams("conflicting", 10, 5)
    expected = f.dualproj_weights(gram)
    for scale in (1e-200, 1e-30, 1e30, 1e200):
        torch.testing.assert_close(f.dualproj_weights(scale * gram), expected, rtol=1e-9, atol=1e-12)
