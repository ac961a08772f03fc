"""Stacked physics-informed networks against single networks and torch.autograd."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from counterpoise.lab.models.pinn import Derivatives, StackedPINN

X, Y = (1.0, 0.0), (0.0, 1.0)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def single(seed: int, width: int, depth: int, centre: Tensor, spread: Tensor) -> tuple[nn.Sequential, nn.Module]:
    """Build a network of nn.Linear layers with the same initialisation."""
    stream = torch.Generator().manual_seed(seed)
    sizes = [2, *[width] * depth, 1]
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(layer.weight, generator=stream)
        nn.init.zeros_(layer.bias)
        modules += [layer, nn.Tanh()]
    layers = nn.Sequential(*modules[:-1])

    class Standardised(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return layers((x - centre) / spread).squeeze(-1)  # type: ignore[no-any-return]

    return layers, Standardised()


def derivative(network: nn.Module, x: Tensor, direction: Tensor, order: int) -> Tensor:
    """Differentiate along a direction by repeated reverse passes."""
    value: Tensor = network(x)
    for _ in range(order):
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        value = gradient @ direction
    return value


@pytest.mark.parametrize(
    "derivatives",
    [((X, 2), (Y, 2)), ((X, 2), (Y, 1)), ((Y, 1),), ((X, 4), ((1.0, -1.0), 3))],
    ids=["second", "mixed", "first", "fourth"],
)
def test_values_derivatives_and_gradients_agree_with_autograd_of_single_networks(derivatives: Derivatives) -> None:
    centre, spread = torch.tensor([0.3, -0.2]), torch.tensor([0.7, 1.3])
    seeds = [3, 8]
    stack = StackedPINN(seeds, width=7, depth=3, centre=centre.tolist(), spread=spread.tolist())
    with torch.no_grad():
        for bias in stack.biases:
            bias += 0.1
    x = torch.rand(2, 5, 2)
    jet = stack.jet(x, derivatives)
    weights = torch.rand(1 + sum(order for _, order in derivatives), 5)
    outputs = [jet.value, *(d for along in jet.along for d in along)]
    sum((w * out).sum() for w, out in zip(weights, outputs, strict=True)).backward()
    for r, seed in enumerate(seeds):
        layers, network = single(seed, 7, 3, centre, spread)
        for name, parameter in layers.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
        points = x[r].clone().requires_grad_()
        expected = [network(points)]
        for direction, order in derivatives:
            expected += [derivative(network, points, torch.tensor(direction), m) for m in range(1, order + 1)]
        for out, other in zip(outputs, expected, strict=True):
            torch.testing.assert_close(out[r], other)
        sum((w * out).sum() for w, out in zip(weights, expected, strict=True)).backward()
        linear = [module for module in layers if isinstance(module, nn.Linear)]
        for weight, bias, layer in zip(stack.weights, stack.biases, linear, strict=True):
            torch.testing.assert_close(weight.grad[r].T, layer.weight.grad)
            torch.testing.assert_close(bias.grad[r, 0], layer.bias.grad)


def test_a_network_does_not_depend_on_the_others_of_its_stack() -> None:
    x = torch.rand(4, 2)
    alone, stacked = StackedPINN([5], width=9), StackedPINN([1, 5, 2], width=9)
    torch.testing.assert_close(alone(x)[0], stacked(x)[1], rtol=0, atol=0)


def test_xavier_normal_initialisation() -> None:
    network = StackedPINN(range(20), width=50)
    assert network.weights[1].std().item() == pytest.approx(math.sqrt(2 / 100), rel=0.02)
    assert all(bool((bias == 0).all()) for bias in network.biases)
