"""The network that the benchmarks and the NYUv2 studies train."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.models import SegNet
from counterpoise.lab.models.pooling import picked, placed, winners


def test_has_the_parameters_of_the_paper() -> None:
    assert sum(p.numel() for p in SegNet().parameters()) == 18_869_137


def test_keeps_the_size_of_its_input() -> None:
    net = SegNet({"depth": 1, "edges": 2}).eval()
    for height, width in ((32, 64), (50, 37)):
        out = net(torch.randn(2, 3, height, width))
        assert {task: tuple(y.shape) for task, y in out.items()} == {
            "depth": (2, 1, height, width),
            "edges": (2, 2, height, width),
        }


def few_values(*shape: int) -> Tensor:
    """Numbers among which the same ones meet in most windows, and a few that are none."""
    x = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).double()
    return torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.02, torch.nan, x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooling_and_unpooling_by_arithmetic_are_torchs(layout: torch.memory_format) -> None:
    x = few_values(3, 5, 24, 20).contiguous(memory_format=layout)
    largest, indices = F.max_pool2d(x, 2, return_indices=True)
    which = winners(x)
    torch.testing.assert_close(picked(x, which), largest, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        placed(largest, which), F.max_unpool2d(largest, indices, [2, 2]), rtol=0, atol=0, equal_nan=True
    )


def test_unpooling_is_the_transpose_of_pooling() -> None:
    x, y = torch.randn(2, 3, 8, 6).double().requires_grad_(), torch.randn(2, 3, 4, 3).double().requires_grad_()
    which = winners(x)
    assert torch.autograd.gradcheck(picked, (x, which))
    assert torch.autograd.gradcheck(placed, (y, which))
    torch.testing.assert_close((picked(x, which) * y).sum(), (x * placed(y, which)).sum())


def test_a_compiled_network_is_the_network() -> None:
    torch.manual_seed(0)
    net = SegNet(width=4).double()
    image = torch.randn(2, 3, 64, 32).double()
    found = []
    for features in (net.features, torch.compile(net.features, backend="eager", fullgraph=True), net._fused):
        torch.manual_seed(1)  # the same channels are dropped
        out = features(image)
        found.append([out, *torch.autograd.grad(out.square().sum(), net.shared_parameters())])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
