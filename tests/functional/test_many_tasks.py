"""Gram solvers for many tasks: no batched factorisation of large matrices on the CPU, and gradients of rank one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.grams import grams
from torch import Tensor

import counterpoise.functional as f
from counterpoise.functional import _complementarity, _linear_systems
from counterpoise.functional import _tolerances as tolerances

LARGEST_SAFE = 150  # with several threads, MKL fails to factorise a batch of larger matrices
FACTORISATIONS = ("solve", "solve_ex", "inv", "inv_ex", "lu", "lu_factor", "lu_factor_ex", "det", "slogdet")
SOLVERS: dict[str, Callable[[Tensor], f.Solution]] = {
    "mgda": f.mgda,
    "cagrad": f.cagrad,
    "upgrad": f.upgrad,
    "dualproj": f.dualproj,
    "imtl-g": f.imtl_g,
    "nash": f.nash,
    "nash with a preference": lambda gram: f.nash(gram, preference=torch.linspace(1, 2, gram.shape[-1])),
    "fairgrad": lambda gram: f.fairgrad(gram, alpha=2.0),
}
WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: lambda gram, solve=solve: solve(gram).weights for name, solve in SOLVERS.items()},  # type: ignore[misc]
    "config": f.config_weights,
    "pcd": lambda gram: f.pcd_weights(gram, gram.diagonal(dim1=-2, dim2=-1)),
}


@pytest.fixture
def factorised(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Return a list to which the shapes of all factorised matrices are appended."""
    shapes: list[torch.Size] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(matrix: Tensor, *args: Any, **kwargs: Any) -> Any:
            shapes.append(matrix.shape)
            return function(matrix, *args, **kwargs)

        return record

    for name in FACTORISATIONS:
        monkeypatch.setattr(torch.linalg, name, recorded(getattr(torch.linalg, name)))
    return shapes


def is_safe(shape: torch.Size) -> bool:
    """Return whether MKL factorises matrices of this shape with any number of threads."""
    return shape[-1] <= LARGEST_SAFE or shape[:-2].numel() == 1


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with one and with two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def nearly_orthogonal(batch: int, tasks: int) -> Tensor:
    """Return Gram matrices of nearly orthogonal gradients, half of which conflict."""
    j = torch.randn(batch, tasks, 40 * tasks, generator=torch.Generator().manual_seed(tasks))
    return j @ j.mT


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("tasks", [160, 300])
@pytest.mark.parametrize("name", ["cagrad", "upgrad"])
def test_many_tasks_are_solved_with_one_and_two_threads(name: str, tasks: int) -> None:
    gram = nearly_orthogonal(1, tasks)[0]
    if name == "upgrad":
        gram[20:, :20], gram[:20, 20:] = 0.0, 0.0  # conflict among twenty tasks is enough
        gram[20:, 20:] = torch.eye(tasks - 20)
    solution = SOLVERS[name](gram)
    assert solution.solved
    assert solution.residual < 1e-5


@pytest.mark.parametrize("name", WEIGHTS)
def test_large_matrices_are_not_factorised_in_a_batch(name: str, factorised: list[torch.Size]) -> None:
    gram = nearly_orthogonal(1 if name == "upgrad" else 2, LARGEST_SAFE + 1)  # UPGrad has T systems for each matrix
    assert WEIGHTS[name](gram).isfinite().all()
    assert factorised
    assert all(map(is_safe, factorised))


@pytest.mark.parametrize("name", ["mgda", "cagrad", "dualproj"])
def test_hard_problems_of_many_tasks_are_not_factorised_in_a_batch(name: str, factorised: list[torch.Size]) -> None:
    """Dependent gradients reach the interior point, and the bisection of CAGrad."""
    j = torch.randn(2, LARGEST_SAFE + 1, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert SOLVERS[name](j @ j.mT).solved.all()
    assert all(map(is_safe, factorised))


def test_systems_solved_one_by_one_have_the_bits_of_a_batch() -> None:
    matrix, right = nearly_orthogonal(3, 140).double(), torch.randn(3, 140, 2, dtype=torch.float64)
    together = torch.linalg.solve(matrix, right)
    assert torch.equal(_linear_systems.solve(matrix, right), together)
    assert torch.equal(_linear_systems.solve(matrix[:0], right[:0]), together[:0])


@pytest.mark.parametrize("kind", ["regular", "crowded", "conflicting", "scaled", "opposite", "zero"])
@pytest.mark.parametrize("name", ["mgda", "cagrad", "upgrad", "dualproj"])
def test_all_supports_of_twelve_tasks_give_the_solution_of_the_cpu(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA tries as many."""
    gram = grams(kind, 2, tolerances.ENUMERATED_CUDA_TASKS)
    expected = SOLVERS[name](gram)
    monkeypatch.setattr(tolerances, "ENUMERATED_TASKS", tolerances.ENUMERATED_CUDA_TASKS)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(_complementarity, "solve_interior_point", None)  # must not be called
    found = SOLVERS[name](gram)
    assert found.solved.all()
    assert (found.residual < 1e-6).all()
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    off = found.weights - expected.weights  # compare directions: for a singular matrix the weights are not unique
    distance = torch.einsum("bi,bij,bj->b", off, gram, off).clamp_min(0).sqrt()
    assert (distance <= 1e-6 * (norms * expected.weights.abs()).sum(-1)).all()


@pytest.mark.parametrize("entries", [1, 2000])
@pytest.mark.parametrize("tasks", [12, 40, 100])
def test_parallel_gradients_are_solved(tasks: int, entries: int) -> None:
    gram = rank_one(tasks, entries, signs=False)
    for name, solve in SOLVERS.items():
        solution = solve(gram)
        assert solution.solved.all(), name
        assert (solution.residual < 1e-4).all(), name


@pytest.mark.parametrize("entries", [1, 2000])
@pytest.mark.parametrize("tasks", [12, 40, 100])
def test_opposite_gradients_are_solved_where_a_solution_exists(tasks: int, entries: int) -> None:
    """IMTL-G, Nash-MTL and FairGrad have none; the others have one though rounding makes the matrix indefinite."""
    gram = rank_one(tasks, entries, signs=True)[:1]
    for name, solve in SOLVERS.items():
        if name == "upgrad" and tasks == 100:
            continue  # takes seconds
        solution = solve(gram)
        assert bool(solution.solved) == (name in ("mgda", "cagrad", "upgrad", "dualproj")), name
        if solution.solved:
            assert (solution.residual < 1e-4).all(), name


@pytest.mark.parametrize("name", ["mgda", "cagrad", "upgrad", "dualproj"])
def test_only_a_matrix_that_rounding_does_not_explain_is_unsolved(name: str) -> None:
    """In float32, rounding may take the cosine of opposite gradients to −1.00001, but not to −1.001."""
    gram = torch.eye(12).repeat(2, 1, 1)
    gram[:, 0, 1] = gram[:, 1, 0] = torch.tensor([-1.00001, -1.001])
    solution = SOLVERS[name](gram)
    assert solution.solved[0]
    if name in ("upgrad", "dualproj"):  # the other two problems have a solution for this matrix
        assert not solution.solved[1]
    assert solution.weights.isfinite().all()


def rank_one(tasks: int, entries: int, *, signs: bool) -> Tensor:
    """Return three float32 Gram matrices of gradients that are multiples of one vector."""
    generator = torch.Generator().manual_seed(tasks)
    factors = torch.randn(3, tasks, 1, generator=generator)
    j = (factors if signs else factors.abs()) * torch.randn(3, 1, entries, generator=generator)
    return j @ j.mT
