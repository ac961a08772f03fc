"""Heads that skip tasks without gradient are the heads of a plain network."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.models.heads import wide_heads
from counterpoise.lab.models.silu import silu

R, N, WIDTH, SIZE, T = 2, 5, 4, 3, 4


def parts(dropped: bool) -> list[Tensor | None]:
    torch.manual_seed(0)
    shapes = [(R, N, WIDTH), (R, WIDTH, T * SIZE), (R, 1, T * SIZE), (R, SIZE, T)]
    tensors: list[Tensor | None] = [torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    return [*tensors, (torch.rand(R, N, T * SIZE) > 0.3).double() / 0.7 if dropped else None]


def one_by_one(z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, kept: Tensor | None) -> Tensor:
    """Every replica and every task by itself."""
    rows = []
    for r in range(R):
        outs = []
        for t in range(T):
            mine = slice(t * SIZE, (t + 1) * SIZE)
            hidden = F.silu(F.linear(z[r], hidden_weight[r, :, mine].T, hidden_bias[r, 0, mine]))
            outs.append((hidden if kept is None else hidden * kept[r, :, mine]) @ weight[r, :, t])
        rows.append(torch.stack(outs, -1))
    return torch.stack(rows)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("asked", [[0], [2], [1, 3], [0, 1, 2, 3], []])
def test_gradients_of_some_tasks_are_those_of_heads_one_by_one(asked: list[int], dropped: bool, sparse: bool) -> None:
    inputs = parts(dropped)
    leaves = [x for x in inputs[:4] if x is not None]
    ours, theirs = wide_heads(*inputs, sparse=sparse), one_by_one(*inputs)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs)
    direction = torch.randn(R, N, T, dtype=torch.double)
    direction[..., [t for t in range(T) if t not in asked]] = 0
    for a, b in zip(
        torch.autograd.grad(ours, leaves, direction), torch.autograd.grad(theirs, leaves, direction), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_finite_differences() -> None:
    assert torch.autograd.gradcheck(partial(wide_heads, sparse=True), parts(True))  # type: ignore[arg-type]


def test_silu_is_torchs() -> None:
    x = torch.cat((torch.linspace(-800, 800, 101), torch.randn(50))).double().requires_grad_()
    torch.testing.assert_close(silu(x), F.silu(x))
    (ours,), (theirs,) = (torch.autograd.grad(f(x).sum(), x) for f in (silu, F.silu))
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        assert torch.equal(silu(x), F.silu(x))
