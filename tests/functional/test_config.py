"""ConFIG compared with its definition on the gradients themselves, and with torchjd."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.gram_properties import (
    arbitrary_matrices,
    assert_same_direction,
    check_absent,
    check_arbitrary,
    check_batching,
)
from helpers.grams import jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f


def direction(j: Tensor, preference: Tensor | None = None) -> Tensor:
    return f.config_weights(j @ j.T, preference=preference) @ j


def defined_direction(j: Tensor, p: Tensor) -> Tensor:
    """Return (Σ g_i·u) u with u along U⁺p, by a singular value decomposition of the unit gradients."""
    units = torch.nan_to_num(j / j.norm(dim=1, keepdim=True))
    u = torch.linalg.pinv(units, rtol=1e-6) @ p
    if u.norm() < 1e-9:
        return torch.zeros_like(u)
    u = torch.nn.functional.normalize(u, dim=0)
    return u * (j @ u).sum()


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "crowded", "duplicated", "opposite", "zero"])
def test_direction_matches_its_definition(kind: str, tasks: int) -> None:
    for index, j in enumerate(jacobians(kind, 10, tasks)):
        p = 0.2 + torch.rand(tasks, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        scale = j.norm().item()
        for preference in (None, p):
            expected = defined_direction(j, torch.ones_like(p) if preference is None else p)
            torch.testing.assert_close(direction(j, preference), expected, rtol=1e-6, atol=1e-6 * scale)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 8))
def test_cosines_are_in_the_ratio_of_the_preference(seed: int, tasks: int) -> None:
    """The length is the sum of the projections of all gradients on the direction."""
    j = jacobians("conflicting", 1, tasks, seed)[0]
    p = 0.1 + torch.rand(tasks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    d = direction(j, p)
    cosines = j @ d / j.norm(dim=1) / d.norm()
    assert (cosines > 0).all()
    torch.testing.assert_close(cosines / p, (cosines / p).mean().expand(tasks), rtol=1e-6, atol=0)
    torch.testing.assert_close(d.norm(), (j @ d).sum() / d.norm())
    torch.testing.assert_close(direction(j, 7 * p), d)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 8), decades=st.floats(-6, 6))
def test_permutation_and_scale(seed: int, tasks: int, decades: float) -> None:
    """The scale of one task changes the length of the direction only; a common scale is a factor of it."""
    j = jacobians("conflicting", 1, tasks, seed)[0]
    d = direction(j)
    order = torch.randperm(tasks, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(direction(j[order]), d, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(direction(10**decades * j), 10**decades * d, rtol=1e-6, atol=1e-8 * 10**decades)
    scaled = j.clone()
    scaled[0] *= 10**decades
    torch.testing.assert_close(torch.nn.functional.normalize(direction(scaled), dim=0), d / d.norm())


def test_torchjd() -> None:
    """All 200 directions agree, T from 2 to 16, so that no residual has to decide between both."""
    generator = torch.Generator().manual_seed(0)
    for count in range(200):
        tasks = 2 + count % 15
        j = torch.randn(tasks, 40, generator=generator, dtype=torch.float64)
        if count % 2:  # cosines of nearly 1: the Gram matrix resolves the direction to 1e-6
            j = j * 10 ** torch.randn(tasks, 1, generator=generator, dtype=torch.float64)
            j[-1] = j[0] + 0.1 * j[-1]
        p = None if count % 3 else 0.1 + torch.rand(tasks, generator=generator, dtype=torch.float64)
        theirs = torchjd.ConFIG(p)(j)
        assert (direction(j, p) - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_batches_and_absent_tasks(tasks: int) -> None:
    p = torch.linspace(0.5, 2.0, tasks, dtype=torch.float64)
    check_batching(f.config_weights, tasks)
    check_batching(lambda gram: f.config_weights(gram, preference=p), tasks)
    check_absent(lambda gram, index: f.config_weights(gram), tasks)
    check_absent(lambda gram, index: f.config_weights(gram, preference=p[index]), tasks)


@settings(deadline=None, max_examples=60)
@given(arbitrary_matrices())
def test_arbitrary_matrices(gram: Tensor) -> None:
    check_arbitrary(f.config_weights, gram)
    check_arbitrary(lambda matrix: f.config_weights(matrix, preference=torch.ones(len(gram))), gram)


def test_nearly_opposite_gradients_have_no_large_weights() -> None:
    for gap in (1e-3, 1e-9, 1e-15, 0.0):
        gram = torch.tensor([[1.0, -3 * (1 - gap)], [-3 * (1 - gap), 9.0]], dtype=torch.float64)
        torch.testing.assert_close(f.config_weights(gram), torch.tensor([2.0, 2 / 3], dtype=torch.float64))


def test_momenta_are_corrected_for_their_bias() -> None:
    """The direction is that of ConFIG on m_i / (1 − β^n_i)."""
    j = jacobians("conflicting", 4, 3)
    steps = torch.tensor([4, 2, 3])
    correction = 1 - 0.9 ** steps.double()
    corrected = j / correction.unsqueeze(-1)
    weights = f.mconfig_weights(j @ j.mT, steps)
    expected = f.config_weights(corrected @ corrected.mT)
    torch.testing.assert_close(weights, expected / correction)
    unseen = f.mconfig_weights(j @ j.mT, torch.tensor([4, 0, 3]))
    assert (unseen[:, 1] == 0).all()
    corrected = corrected[:, [0, 2]]
    for one, matrix in zip(unseen[:, [0, 2]], corrected @ corrected.mT, strict=True):
        assert_same_direction(one * correction[[0, 2]], f.config_weights(matrix), matrix)


def test_update_for_one_task_is_adam() -> None:
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([x], lr=1.0)
    mean = momentum = square = torch.zeros(5, dtype=torch.float64)
    total = torch.zeros(5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 8):
        x.grad = torch.randn(5, generator=generator, dtype=torch.float64)
        adam.step()
        mean = 0.9 * mean + 0.1 * x.grad
        weight = f.mconfig_weights((mean @ mean).view(1, 1), torch.tensor([step]))
        update, momentum, square = f.mconfig_update(weight * mean, momentum, square, step)
        total = total - update
        torch.testing.assert_close(total, x.detach())


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match=r"shape \(…, T, T\), got \(2, 3\)"):
        f.config_weights(torch.ones(2, 3))
    with pytest.raises(ValueError, match="preference"):
        f.config_weights(torch.eye(2), preference=torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="beta"):
        f.mconfig_weights(torch.eye(2), torch.ones(2), beta=1.0)
