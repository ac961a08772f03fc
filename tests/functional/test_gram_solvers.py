"""What holds for every solver: finite, batched, precise, equivariant, and clear about what it cannot solve."""

from collections.abc import Callable

import pytest
import torch
from helpers.grams import KINDS, grams, jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f


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
