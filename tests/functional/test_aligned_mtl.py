"""Aligned-MTL: condition number one."""

import pytest
import torch
from helpers.grams import grams, jacobians
from torch import Tensor

import counterpoise.functional as f


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
