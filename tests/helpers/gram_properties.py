"""Properties that every function from Gram matrices to weights must have."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from .grams import KINDS, grams

Solver = Callable[[Tensor], Tensor]
ENTRIES = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-40, 1e300, -1e300, torch.inf, -torch.inf, torch.nan])


@st.composite
def arbitrary_matrices(draw: st.DrawFn, least: int = 1, most: int = 5) -> Tensor:
    """Draw square matrices that need not be Gram matrices, with overflow, underflow and NaN."""
    tasks = draw(st.integers(least, most))
    entries = draw(st.lists(ENTRIES, min_size=tasks * tasks, max_size=tasks * tasks))
    return torch.tensor(entries, dtype=torch.float64).view(tasks, tasks)


def check_arbitrary(solve: Solver, gram: Tensor) -> None:
    """Check that weights are finite, and zero for absent tasks, whatever the matrix contains."""
    for matrix in (gram, (gram + gram.mT) / 2, gram.float(), torch.stack((gram, torch.eye(len(gram)).double()))):
        weights = solve(matrix)
        assert weights.isfinite().all()
        assert (weights[matrix.diagonal(dim1=-2, dim2=-1).isnan()] == 0).all()


def check_batching(solve: Solver, tasks: int, *, kinds: tuple[str, ...] = KINDS) -> None:
    """Check dtypes, and that the directions of single matrices and of a batch agree."""
    for kind in kinds:
        gram = grams(kind, 12, tasks)
        together = solve(gram)
        assert together.isfinite().all(), kind
        assert together.dtype == torch.float64
        assert not together.requires_grad
        for one, gram_of_one in zip(together[:4], gram[:4], strict=True):
            assert_same_direction(solve(gram_of_one), one, gram_of_one)
        reshaped = solve(gram.view(3, 4, tasks, tasks)).view(12, tasks)
        torch.testing.assert_close(reshaped, together, rtol=1e-9, atol=1e-12)
        single = solve(gram.float())
        assert single.isfinite().all()
        assert single.dtype == torch.float32
    assert solve(torch.zeros(2, 0, tasks, tasks)).shape == (2, 0, tasks)


def check_absent(solve: Callable[[Tensor, Tensor], Tensor], tasks: int) -> None:
    """Check that absent tasks get weight 0 and do not affect the others.

    `solve` gets a Gram matrix and the indices, among all tasks, of its rows.
    """
    every = torch.arange(tasks)
    for gram in grams("absent", tasks, tasks):
        present = gram.diagonal().isfinite()
        weights = solve(gram, every)
        assert (weights[~present] == 0).all()
        expected = solve(gram[present][:, present], every[present])
        torch.testing.assert_close(weights[present], expected, rtol=1e-7, atol=1e-9)


def assert_same_direction(ours: Tensor, other: Tensor, gram: Tensor, tolerance: float = 1e-7) -> None:
    """Compare directions: for a singular matrix the weights are not unique."""
    off, known = ours - other, torch.nan_to_num(gram)
    size = (known.diagonal().sqrt() * other.abs()).sum()
    assert (off @ known @ off).clamp_min(0).sqrt() <= tolerance * size + 1e-12
