"""The CUDA kernels of physics-informed networks, interpreted on the CPU, against the reference layers."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.triton_interpreter import interpreted

from counterpoise.lab.models import pinn
from counterpoise.lab.models.pinn import Derivatives, StackedPINN

MODULES = (
    "counterpoise.lab.models.pinn_triton",
    "counterpoise.lab.models.pinn_layers",
    "counterpoise.lab.engine.jacobi_triton",
)
X, Y = (1.0, 0.0), (0.0, 1.0)


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import the kernels with an interpreter in place of Triton."""
    with interpreted(monkeypatch, MODULES) as modules:
        yield modules[1]


@pytest.mark.parametrize(
    "derivatives", [(), ((Y, 1),), ((X, 2), (Y, 1)), ((X, 2), (Y, 2))], ids=["value", "first", "mixed", "second"]
)
def test_kernels_agree_with_the_reference(
    layers: Any, derivatives: Derivatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = StackedPINN([0, 1], width=6, depth=3, centre=[0.1, 0.2], spread=[0.5, 2.0]).double()
    with torch.no_grad():
        for bias in network.biases:
            bias.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.rand(2, 19, 2, dtype=torch.float64)
    found = []
    for kernels in (None, layers):
        monkeypatch.setattr(pinn, "fused_layers", lambda x, orders, kernels=kernels: kernels)
        jet = network.jet(x, derivatives)
        outputs = torch.stack([jet.value, *(d for along in jet.along for d in along)])
        factors = torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64).view_as(outputs)
        gradients = torch.autograd.grad((outputs * factors).sum(), network.layers(), materialize_grads=True)
        found.append((outputs, gradients))
    torch.testing.assert_close(found[1], found[0])


def test_the_kernel_of_random_numbers_draws_those_of_the_reference(layers: Any) -> None:
    seeds, step = torch.tensor([0, 5, -3]), torch.tensor(40_000)
    expected = pinn.draw_uniform(seeds, step, 1500, torch.float32)
    torch.testing.assert_close(layers.uniform_draws(seeds, step, 1500), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_the_kernel_of_rotations_decomposes_matrices(tasks: int) -> None:
    rows = torch.randn(3, tasks, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows *= torch.logspace(0, 3, tasks, dtype=torch.float64).unsqueeze(1)
    rows[1, 0] = rows[1, 1]  # a singular matrix
    matrix = rows @ rows.mT / 1e6
    values, vectors = importlib.import_module(MODULES[2]).jacobi_eigh(matrix)
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, matrix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.sort().values, torch.linalg.eigvalsh(matrix), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(tasks).double().expand_as(matrix))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_numbers_on_cuda_are_those_on_the_cpu() -> None:
    seeds, step = torch.arange(300), torch.tensor(49_999)
    found = [pinn.draw_uniform(seeds.to(d), step.to(d), 3000, torch.float32).cpu() for d in ("cpu", "cuda")]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("derivatives", [(), ((X, 2), (Y, 1)), ((X, 2), (Y, 2))], ids=["value", "mixed", "second"])
def test_cuda_agrees_with_the_cpu(derivatives: Derivatives) -> None:
    network, x = StackedPINN([0, 1]), torch.rand(2, 70, 2)
    found = []
    for device in ("cpu", "cuda"):
        jet = network.to(device).jet(x.to(device), derivatives)
        outputs = torch.stack([jet.value, *(d for along in jet.along for d in along)])
        gradients = torch.autograd.grad(outputs.square().sum(), network.layers(), materialize_grads=True)
        found.append((outputs.cpu(), [gradient.cpu() for gradient in gradients]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
