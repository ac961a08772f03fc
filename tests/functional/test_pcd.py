"""PCD satisfies the optimality conditions of its quadratic program and agrees with torchjd."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.gram_properties import arbitrary_matrices, check_absent, check_arbitrary, check_batching
from helpers.grams import jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f

TAU = 0.02


def squared_norms(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=-2, dim2=-1)


def violation(gram: Tensor, weights: Tensor, tau: float = TAU) -> Tensor:
    """Return the largest violation of the optimality conditions, for gradients with norm 1 and the first as primary."""
    norms = gram.diagonal().sqrt()
    cosines = gram / norms / norms.unsqueeze(-1)
    scaled = weights * norms / (weights[0] * norms[0])  # the length of d is free, the first coefficient is not
    slacks = (cosines @ scaled - tau)[1:]
    multipliers = scaled[1:]
    parts = torch.cat((-slacks, -multipliers, (slacks * multipliers).abs() / (1 + multipliers.abs())))
    length = (weights @ gram @ weights).sqrt() / norms[0]
    return parts.clamp_min(0).amax() + (length - 1).abs()


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "duplicated"])
def test_optimality_conditions(kind: str, tasks: int) -> None:
    j = jacobians(kind, 10, tasks)
    gram = j @ j.mT
    weights = f.pcd_weights(gram, squared_norms(gram), tau=0.5, eps=0.0)
    for w, matrix in zip(weights, gram, strict=True):
        assert violation(matrix, w, tau=0.5) < 1e-7


def test_primary_gradient_that_meets_all_constraints_is_unchanged() -> None:
    j = jacobians("regular", 1, 4)[0]
    j[0] = 20 * (j[1:] / j[1:].norm(dim=1, keepdim=True)).sum(0)
    gram = j @ j.T
    torch.testing.assert_close(f.pcd_weights(gram, squared_norms(gram)), torch.tensor([1.0, 0, 0, 0]).double())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 6), decades=st.floats(-6, 6))
def test_permutation_and_scale(seed: int, tasks: int, decades: float) -> None:
    """The scale of a task other than the primary one has no effect if it was the same in all steps."""
    j = jacobians("conflicting", 1, tasks, seed)[0]
    gram = j @ j.T
    d = f.pcd_weights(gram, squared_norms(gram), eps=0.0) @ j
    assert d.norm().item() == pytest.approx(j[0].norm().item())
    scaled = j.clone()
    scaled[1] *= 10**decades
    other = scaled @ scaled.T
    torch.testing.assert_close(f.pcd_weights(other, squared_norms(other), eps=0.0) @ scaled, d, rtol=1e-6, atol=1e-7)
    order = torch.randperm(tasks, generator=torch.Generator().manual_seed(seed))
    moved = j[order] @ j[order].T
    weights = f.pcd_weights(moved, squared_norms(moved), primary=order.tolist().index(0), eps=0.0)
    torch.testing.assert_close(weights @ j[order], d, rtol=1e-6, atol=1e-7)


def test_torchjd() -> None:
    """Compare on 200 matrices, T from 2 to 16; where the weights differ, our violation may not be larger."""
    generator = torch.Generator().manual_seed(0)
    agreed = 0
    for count in range(200):
        tasks = 2 + count % 15
        j = torch.randn(tasks, 40, generator=generator, dtype=torch.float64)
        if count % 2:
            j = j * 10 ** torch.randn(tasks, 1, generator=generator, dtype=torch.float64)
            j[-1] = j[0] + 0.1 * j[-1]
        if count % 5 == 0:
            j = j - 1.2 * j.mean(0)
        gram = j @ j.T
        ours = f.pcd_weights(gram, squared_norms(gram), eps=0.0)
        theirs = torchjd.PCDWeighting(tau=TAU, eps=0.0)(gram)
        if (ours - theirs).norm() <= 1e-6 * theirs.norm():
            agreed += 1
        else:
            assert violation(gram, ours) <= violation(gram, theirs)
    assert agreed >= 190


def test_running_norms_match_torchjd() -> None:
    weighting = torchjd.PCDWeighting(tau=torch.tensor([0.1, 0.5]), beta=0.8)
    mean, steps = torch.zeros(3).double(), torch.zeros(3, dtype=torch.long)
    for step, j in enumerate(jacobians("conflicting", 8, 3)):
        gram = (1 + step) ** 2 * j @ j.T
        mean, steps = f.pcd_squared_norms(gram, mean, steps, beta=0.8)
        ours = f.pcd_weights(gram, mean, tau=torch.tensor([0.0, 0.1, 0.5]))
        torch.testing.assert_close(ours, weighting(gram))


def test_absent_task_keeps_its_running_norm() -> None:
    mean, steps = torch.tensor([[3.0, 5.0]]), torch.tensor([[2, 2]])
    gram = torch.tensor([[[torch.nan, torch.nan], [torch.nan, 7.0]]])
    new, new_steps = f.pcd_squared_norms(gram, mean, steps, beta=0.5)
    assert new_steps.tolist() == [[2, 3]]
    assert new[0, 0] == 3
    assert new[0, 1].item() == pytest.approx(5 + 0.5 / (1 - 0.5**3) * 2)
    assert new.dtype == torch.float32


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_cases(dtype: torch.dtype) -> None:
    j = jacobians("regular", 1, 3)[0]
    primary, other = j[0], j[1] - (j[1] @ j[0]) / (j[0] @ j[0]) * j[0]
    cases = {
        (1.0, 0.0, 0.0): torch.stack((primary, other, -2 * other)),  # opposite: no direction makes both decrease
        (0.0, 0.0, 0.0): torch.stack((0 * primary, j[1], j[2])),
    }
    for expected, rows in cases.items():
        gram = (rows @ rows.T).to(dtype)
        weights = f.pcd_weights(gram, squared_norms(gram))
        torch.testing.assert_close(weights, torch.tensor(expected, dtype=dtype))
        torch.testing.assert_close(weights, torchjd.PCDWeighting()(gram))
    gram = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype)
    assert (f.pcd_weights(gram, torch.ones(2), tau=0.0) @ gram).abs().max() < 1e-3  # d is zero
    gram = torch.diag(torch.tensor([torch.nan, 1.0, 4.0], dtype=dtype))
    torch.testing.assert_close(f.pcd_weights(gram, torch.ones(3)), torch.tensor([0.0, 0.5, 0.5], dtype=dtype))


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_batches_and_absent_tasks(tasks: int) -> None:
    norms = torch.linspace(20.0, 60.0, tasks, dtype=torch.float64)
    check_batching(lambda gram: f.pcd_weights(gram, norms), tasks)

    def solve(gram: Tensor, index: Tensor) -> Tensor:
        if 1 not in index:
            return torch.full((len(gram),), 1 / len(gram), dtype=gram.dtype)
        return f.pcd_weights(gram, norms[index], primary=index.tolist().index(1))

    check_absent(solve, tasks)


def test_huge_cosines_do_not_overflow() -> None:
    gram = torch.tensor([[1.0, -1e300], [0.0, 1.0]], dtype=torch.float64)
    check_arbitrary(lambda matrix: f.pcd_weights(matrix, torch.ones(2), primary=-1), gram)


@settings(deadline=None, max_examples=60)
@given(arbitrary_matrices())
def test_arbitrary_matrices(gram: Tensor) -> None:
    check_arbitrary(lambda matrix: f.pcd_weights(matrix, torch.ones(len(gram)), primary=-1), gram)
    check_arbitrary(lambda matrix: f.pcd_weights(matrix, squared_norms(matrix)), gram)


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match=r"tau must be in \[0, 1\], got 1.5"):
        f.pcd_weights(torch.eye(2), torch.ones(2), tau=1.5)
    with pytest.raises(ValueError, match="primary must be the index of one of 2 tasks, got 2"):
        f.pcd_weights(torch.eye(2), torch.ones(2), primary=2)
    with pytest.raises(ValueError, match="beta"):
        f.pcd_squared_norms(torch.eye(2), torch.ones(2), torch.ones(2), beta=1.0)
