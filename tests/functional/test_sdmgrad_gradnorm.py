"""SDMGrad converges to its minimum, and GradNorm's gradient is the derivative of its loss."""

import pytest
import torch
from helpers.grams import grams
from hypothesis import given
from hypothesis import strategies as st

import counterpoise.functional as f


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_sdmgrad_converges_to_its_minimum(tasks: int) -> None:
    gram, lam = grams("conflicting", 10, tasks), 0.3
    w = torch.full((10, tasks), 1 / tasks, dtype=torch.float64)
    weights, w = f.sdmgrad_weights(gram, w, lam=lam, lr=0.3, momentum=0.0, iterations=4000)
    torch.testing.assert_close(weights, (w + lam / tasks) / (1 + lam))
    slopes = (gram @ (w + lam / tasks).unsqueeze(-1)).squeeze(-1)
    gap = (w * slopes).sum(-1) - slopes.amin(-1)
    assert (gap <= 1e-6 * gram.diagonal(dim1=-2, dim2=-1).mean(-1)).all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_projection_on_the_simplex_is_optimal(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    p = f.project_on_simplex(x, torch.ones(len(values), dtype=torch.bool))
    assert p.sum().item() == pytest.approx(1)
    assert (p >= 0).all()
    # Optimality: x − p is constant on the support and no larger elsewhere.
    shift = (x - p)[p > 0]
    assert shift.max() - shift.min() < 1e-9
    assert ((x - p)[p == 0] <= shift.min() + 1e-9).all()


def test_gradnorm_gradient_is_the_derivative() -> None:
    w = torch.tensor([0.5, 1.2, 1.3], dtype=torch.float64, requires_grad=True)
    norms, losses = torch.tensor([2.0, 0.3, 5.0]).double(), torch.tensor([0.5, 3.0, 1.0]).double()
    first = torch.tensor([1.0, 2.0, 4.0]).double()
    rate = losses / first / (losses / first).mean()
    target = ((w * norms).mean() * rate**1.5).detach()
    (w * norms - target).abs().sum().backward()
    ours = f.gradnorm_gradient(w, (w * norms).detach(), losses, first, alpha=1.5)
    torch.testing.assert_close(ours, w.grad)
