"""Extreme losses, and shared parameters that cannot be compared."""

import math

import pytest
import torch
from torch import nn

import counterpoise as cp


def gradients(balancer: cp.Balancer, extreme: float | None, steps: int = 60) -> list[torch.Tensor]:
    """Return the shared gradients of a run whose fifth loss of the first task has an extreme value."""
    w = torch.ones(3, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    directions: list[torch.Tensor] = []
    for step in range(steps):
        x = torch.rand(2, 3, generator=generator) + 0.5
        losses = list((x * w).square().mean(-1))
        if step == 5 and extreme is not None:
            losses[0] = losses[0] - losses[0].detach() + extreme  # an ordinary gradient
        w.grad = None
        balancer.backward(losses, shared=[w])
        assert w.grad is not None
        directions.append(w.grad)
    return directions


@pytest.mark.parametrize("extreme", [0.0, 1e20, 3e38, 1e-38, math.nan, math.inf, -5.0])
@pytest.mark.parametrize("name", ["moco", "db-mtl"])
def test_one_extreme_loss_does_not_damage_the_running_means(name: str, extreme: float) -> None:
    balancer = cp.make(name, 2)
    ordinary, disturbed = gradients(cp.make(name, 2), None), gradients(balancer, extreme)
    for key, value in balancer.state_dict().items():
        assert bool(torch.isfinite(value).all()), key
    torch.testing.assert_close(disturbed[-1], ordinary[-1], rtol=0.05, atol=0)


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", ["pcgrad", "graddrop", "gradnorm-proxy", "db-mtl"])
def test_sparse_gradients_are_refused_in_the_first_step(name: str, passes: str) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    values = embedding(torch.tensor([0, 2])).square()
    with pytest.raises((ValueError, RuntimeError), match=r"shape \(5, 3\) is sparse|[Ss]parse"):
        cp.make(name, 2, passes=passes).backward([values.sum(), values[0].sum()], shared=embedding.parameters())
    assert embedding.weight.grad is None


@pytest.mark.parametrize("name", ["pcgrad", "gradnorm-proxy"])
def test_complex_parameters_are_refused(name: str) -> None:
    w = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(ValueError, match=r"complex parameter of shape \(2,\)"):
        cp.make(name, 2).backward([w.abs().sum(), w.real.sum()], shared=[w])


def test_gradnorm_proxy_checks_shared_in_the_first_step() -> None:
    w, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="no task depends on any of the tensors"):
        cp.GradNormProxy(2).backward([w.sum(), w[0]], shared=[other])
