"""Merged heads, with and without skipped tasks, agree with separate heads."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.models.heads import apply_heads
from counterpoise.lab.models.silu import silu

R, N, WIDTH, SIZE, T = 2, 5, 4, 3, 4


def make_inputs(dropped: bool) -> list[Tensor | None]:
    torch.manual_seed(0)
    shapes = [(R, N, WIDTH), (R, WIDTH, T * SIZE), (R, 1, T * SIZE), (R, SIZE, T)]
    tensors: list[Tensor | None] = [torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    return [*tensors, (torch.rand(R, N, T * SIZE) > 0.3).double() / 0.7 if dropped else None]


def separate_heads(
    z: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, mask: Tensor | None
) -> Tensor:
    """Apply the head of each replica and task separately."""
    rows = []
    for r in range(R):
        outs = []
        for t in range(T):
            units = slice(t * SIZE, (t + 1) * SIZE)
            hidden = F.silu(F.linear(z[r], hidden_weight[r, :, units].T, hidden_bias[r, 0, units]))
            outs.append((hidden if mask is None else hidden * mask[r, :, units]) @ weight[r, :, t])
        rows.append(torch.stack(outs, -1))
    return torch.stack(rows)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("tasks", [[0], [2], [1, 3], [0, 1, 2, 3], []])
def test_gradients_of_some_tasks_agree_with_separate_heads(tasks: list[int], dropped: bool, sparse: bool) -> None:
    inputs = make_inputs(dropped)
    leaves = [x for x in inputs[:4] if x is not None]
    merged, separate = apply_heads(*inputs, sparse=sparse), separate_heads(*inputs)  # type: ignore[arg-type]
    torch.testing.assert_close(merged, separate)
    direction = torch.randn(R, N, T, dtype=torch.double)
    direction[..., [t for t in range(T) if t not in tasks]] = 0
    for a, b in zip(
        torch.autograd.grad(merged, leaves, direction), torch.autograd.grad(separate, leaves, direction), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(partial(apply_heads, sparse=True), make_inputs(True))  # type: ignore[arg-type]


def test_silu_agrees_with_torch() -> None:
    x = torch.cat((torch.linspace(-800, 800, 101), torch.randn(50))).double().requires_grad_()
    torch.testing.assert_close(silu(x), F.silu(x))
    (ours,), (theirs,) = (torch.autograd.grad(f(x).sum(), x) for f in (silu, F.silu))
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        assert torch.equal(silu(x), F.silu(x))
