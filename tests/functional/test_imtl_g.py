"""IMTL-G: equal projections, and the pseudo-inverse for dependent gradients."""

import pytest
import torch
from helpers.grams import REGULAR, SIZES, cosines_and_norms, dependent, grams

import counterpoise.functional as f


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", [*REGULAR, "duplicated"])
def test_projections_are_equal(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.imtl_g(gram)
    cosines, norms = cosines_and_norms(gram)
    x = solution.weights * norms
    projections = (cosines @ x.unsqueeze(-1)).squeeze(-1)
    spread = projections.amax(-1) - projections.amin(-1)
    assert (spread <= 1e-9 * x.norm(dim=-1)).all()
    total = solution.weights.sum(-1)
    sums = torch.where(solution.solved, total, solution.weights.abs().sum(-1))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-6, atol=0)
    assert (projections >= -1e-9 * x.norm(dim=-1, keepdim=True)).all()  # never an ascent direction


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize(
    ("tasks", "rank", "noise"), [(3, 2, 0.0), (5, 3, 0.0), (8, 4, 0.0), (8, 4, 1e-9), (16, 8, 0.0)]
)
def test_dependent_gradients_use_the_pseudo_inverse(tasks: int, rank: int, noise: float) -> None:
    j = dependent(tasks, rank, noise)
    j = j * torch.logspace(-2, 2, tasks, dtype=torch.float64).unsqueeze(-1)
    gram = j @ j.mT
    solution = f.imtl_g(gram)
    assert not solution.solved.any()  # only the zero direction has equal projections
    cosines, norms = cosines_and_norms(gram)
    expected = torch.linalg.pinv(cosines, rtol=1e-10, hermitian=True).sum(-1) / norms
    total, size = expected.sum(-1, keepdim=True), expected.abs().sum(-1, keepdim=True)
    expected = expected / torch.where(total > 1e-6 * size, total, size)
    torch.testing.assert_close(solution.weights, expected, rtol=1e-6, atol=1e-8)
    for one, each in zip(gram, expected, strict=True):
        torch.testing.assert_close(f.imtl_g_weights(one), each, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_that_is_the_sum_of_the_others(dtype: torch.dtype) -> None:
    j = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=dtype)
    third = torch.full((3,), 1 / 3, dtype=dtype)
    torch.testing.assert_close(f.imtl_g_weights(j @ j.T), third)
    opposite = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(f.imtl_g_weights(opposite @ opposite.T) @ opposite, torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("distance", [3e-3, 1e-3, 1e-4])
def test_pseudo_inverse_for_single_and_batched_matrices(distance: float) -> None:
    rows = torch.randn(3, 50, dtype=torch.float64)
    rows[2] = 2 * rows[0] + distance * rows[2]
    gram = (rows @ rows.mT).float()
    norms = gram.double().diagonal().sqrt()
    cosines = gram.double() / torch.outer(norms, norms)
    expected = torch.linalg.pinv(cosines, atol=1e-5, rtol=0.0, hermitian=True).sum(-1) / norms
    expected = (expected / expected.sum()).float()
    opposite = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for weights in (f.imtl_g_weights(gram), f.imtl_g_weights(torch.stack((gram, opposite)))[0]):
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
