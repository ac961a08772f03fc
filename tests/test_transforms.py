"""Function transforms of torch are refused with a message, before any state changes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp

LOSSES = torch.tensor([1.0, 2.0, 3.0])
PLAIN = [name for name in cp.methods("loss") if not cp.describe(name).needs]


@pytest.mark.parametrize("name", PLAIN)
def test_transforms_over_a_loss_space_method_are_refused(name: str) -> None:
    balancer = cp.make(name, 3)
    balancer(LOSSES.clone().requires_grad_())
    before = copy.deepcopy(balancer.state_dict())
    transforms: dict[Any, Tensor] = {
        torch.vmap: torch.rand(4, 3) + 0.5,
        torch.func.grad: LOSSES,
        torch.func.jacrev: LOSSES,
    }
    for transform, losses in transforms.items():
        with pytest.raises(RuntimeError, match=rf"{type(balancer).__name__} cannot be called inside torch\.vmap"):
            transform(balancer)(losses)
    assert str(balancer.state_dict()) == str(before)


@pytest.mark.parametrize("method", ["backward", "loss"])
def test_transforms_over_a_gradient_space_method_are_refused(method: str) -> None:
    balancer, weight = cp.PCGrad(2), torch.ones(2, requires_grad=True)

    def objective(x: Tensor) -> Tensor:
        losses = [(weight * x).sum(), (weight**2 * x).sum()]
        result: Tensor = getattr(balancer, method)(losses, shared=[weight])
        return result

    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(RuntimeError, match=r"PCGrad cannot be called inside torch\.vmap"):
            transform(objective)(torch.rand(2))
    assert weight.grad is None


def test_batch_shape_replaces_vmap() -> None:
    losses = torch.rand(4, 3) + 0.5
    together = cp.UWSO(3, batch_shape=4)(losses)
    torch.testing.assert_close(together, torch.stack([cp.UWSO(3)(row) for row in losses]))
