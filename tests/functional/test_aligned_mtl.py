"""Aligned-MTL: the aligned gradients have condition number 1."""

import pytest
import torch
from helpers.grams import grams, jacobians
from torch import Tensor

import counterpoise.functional as f


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_aligned_gradients_have_condition_number_one(tasks: int) -> None:
    j = jacobians("regular", 20, tasks)
    gram = j @ j.mT
    values = torch.linalg.eigvalsh(gram)
    # The rows of BJ are orthogonal and of length √λ_min, and w = B·1.
    w = f.aligned_mtl_weights(gram)
    direction = (w.unsqueeze(-2) @ j).squeeze(-2)
    expected = (tasks * values[:, 0]).sqrt()  # length of the sum of T such rows
    torch.testing.assert_close(direction.norm(dim=-1), expected)
    inverse_root = torch.linalg.inv(torch.stack([matrix_sqrt(g) for g in gram])) * values[:, :1, None].sqrt()
    torch.testing.assert_close(w, inverse_root.sum(-1))
    aligned = inverse_root @ j
    torch.testing.assert_close(torch.linalg.cond(aligned), torch.ones(20, dtype=torch.float64))


def test_weights_of_singular_matrices_are_finite() -> None:
    assert f.aligned_mtl_weights(grams("duplicated", 5, 4)).isfinite().all()


def matrix_sqrt(matrix: Tensor) -> Tensor:
    """Return the square root of a matrix by the iteration of Denman and Beavers."""
    y, z = matrix, torch.eye(len(matrix), dtype=matrix.dtype)
    for _ in range(60):
        y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
    return y
