"""DCGD compared with its definition on the gradients themselves."""

from typing import get_args

import pytest
import torch
from helpers.gram_properties import arbitrary_matrices, check_absent, check_arbitrary, check_batching
from helpers.grams import jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f

KINDS: tuple[f.DCGDKind, ...] = get_args(f.DCGDKind)


def direction(j: Tensor, residual: int, kind: f.DCGDKind) -> Tensor:
    return f.dcgd_weights(j @ j.T, residual, kind=kind) @ j


def defined_direction(j: Tensor, residual: int, kind: f.DCGDKind) -> Tensor:
    """Return the direction in the paper's formulation, for groups that are not zero."""
    r = j[residual]
    b = j.sum(0) - r
    g = r + b
    if kind == "center":
        center = torch.nn.functional.normalize(torch.stack((r, b)), dim=1).sum(0)
        return center * ((center @ g) / (center @ center))
    if g @ r >= 0 and g @ b >= 0:
        return g
    without_r, without_b = g - (g @ r) / (r @ r) * r, g - (g @ b) / (b @ b) * b
    if kind == "average":
        return (without_r + without_b) / 2
    return without_r if g @ r < 0 else without_b


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_direction_matches_its_definition(kind: f.DCGDKind, tasks: int) -> None:
    """Residual gradients of different size make each of the three cases occur."""
    cases = set()
    for index, j in enumerate(jacobians("regular", 30, tasks)):
        residual = index % tasks
        j[residual] -= 0.3 * (j.sum(0) - j[residual])
        j[residual] *= 10 ** (index % 3 - 1)
        expected = defined_direction(j, residual, kind)
        torch.testing.assert_close(direction(j, residual, kind), expected, rtol=1e-7, atol=1e-9 * j.norm().item())
        total = j.sum(0)
        cases.add(((total @ j[residual] < 0).item(), (total @ (total - j[residual]) < 0).item()))
    assert len(cases) == 3


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 6), decades=st.floats(-4, 4), kind=st.sampled_from(KINDS))
def test_direction_is_in_the_dual_cone(seed: int, tasks: int, decades: float, kind: f.DCGDKind) -> None:
    j = jacobians("conflicting", 1, tasks, seed)[0]
    j[0] *= 10**decades
    d, b = direction(j, 0, kind), j[1:].sum(0)
    assert d @ j[0] >= -1e-9 * d.norm() * j[0].norm()
    assert d @ b >= -1e-9 * d.norm() * b.norm()
    order = torch.randperm(tasks, generator=torch.Generator().manual_seed(seed))
    residual = order.tolist().index(0)
    torch.testing.assert_close(direction(j[order], residual, kind), d, rtol=1e-7, atol=1e-9 * d.norm().item())
    torch.testing.assert_close(direction(100 * j, 0, kind), 100 * d)


@pytest.mark.parametrize("kind", KINDS)
def test_group_without_gradient_leaves_the_other(kind: f.DCGDKind) -> None:
    j = jacobians("regular", 1, 4)[0]
    cancelling = torch.stack((j[0], j[1], -j[1]))
    torch.testing.assert_close(direction(cancelling, 0, kind), j[0])
    torch.testing.assert_close(direction(torch.stack((0 * j[0], j[1], j[2])), 0, kind), j[1] + j[2])
    torch.testing.assert_close(direction(j[:1], 0, kind), j[0])
    gram = j @ j.T
    gram[2, 2] = torch.nan
    torch.testing.assert_close(f.dcgd_weights(gram, 2, kind=kind), torch.tensor([1.0, 1, 0, 1]).double())


@pytest.mark.parametrize("kind", ["center", "projection"])
def test_opposite_groups_cancel(kind: f.DCGDKind) -> None:
    j = jacobians("opposite", 5, 2)
    for one in j:
        assert direction(one, 0, kind).norm() <= 1e-7 * one.norm()


def test_two_tasks_equal_config() -> None:
    gram = torch.stack([j @ j.T for j in jacobians("conflicting", 10, 2)])
    torch.testing.assert_close(f.dcgd_weights(gram, 0), f.config_weights(gram))


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [2, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_absent_tasks(kind: f.DCGDKind, tasks: int) -> None:
    check_batching(lambda gram: f.dcgd_weights(gram, 1, kind=kind), tasks)

    def solve(gram: Tensor, index: Tensor) -> Tensor:
        if 1 not in index:  # without a residual the direction is the sum
            return torch.ones(len(gram), dtype=gram.dtype)
        return f.dcgd_weights(gram, index.tolist().index(1), kind=kind)

    check_absent(solve, tasks)


@settings(deadline=None, max_examples=60)
@given(arbitrary_matrices())
@pytest.mark.parametrize("kind", KINDS)
def test_arbitrary_matrices(kind: f.DCGDKind, gram: Tensor) -> None:
    check_arbitrary(lambda matrix: f.dcgd_weights(matrix, -1, kind=kind), gram)


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="kind must be one of center, projection, average, got 'centre'"):
        f.dcgd_weights(torch.eye(2), 0, kind="centre")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="residual must be the index of one of 2 tasks, got 2"):
        f.dcgd_weights(torch.eye(2), 2)
