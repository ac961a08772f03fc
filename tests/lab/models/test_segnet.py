"""The SegNet of the NYUv2 studies and its pooling."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.models import SegNet
from counterpoise.lab.models.pooling import argmax_2x2, pool_2x2, unpool_2x2


def test_the_number_of_parameters_is_that_of_the_paper() -> None:
    assert sum(p.numel() for p in SegNet().parameters()) == 18_869_137


def test_outputs_have_the_size_of_the_input() -> None:
    net = SegNet({"depth": 1, "edges": 2}).eval()
    for height, width in ((32, 64), (50, 37)):
        out = net(torch.randn(2, 3, height, width))
        assert {task: tuple(y.shape) for task, y in out.items()} == {
            "depth": (2, 1, height, width),
            "edges": (2, 2, height, width),
        }


def few_values(*shape: int) -> Tensor:
    """Return few distinct values, so that most windows have ties, and some NaN."""
    x = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).double()
    return torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.02, torch.nan, x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooling_and_unpooling_agree_with_torch(layout: torch.memory_format) -> None:
    x = few_values(3, 5, 24, 20).contiguous(memory_format=layout)
    largest, indices = F.max_pool2d(x, 2, return_indices=True)
    positions = argmax_2x2(x)
    torch.testing.assert_close(pool_2x2(x, positions), largest, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        unpool_2x2(largest, positions), F.max_unpool2d(largest, indices, [2, 2]), rtol=0, atol=0, equal_nan=True
    )


def test_unpooling_is_the_transpose_of_pooling() -> None:
    x, y = torch.randn(2, 3, 8, 6).double().requires_grad_(), torch.randn(2, 3, 4, 3).double().requires_grad_()
    positions = argmax_2x2(x)
    assert torch.autograd.gradcheck(pool_2x2, (x, positions))
    assert torch.autograd.gradcheck(unpool_2x2, (y, positions))
    torch.testing.assert_close((pool_2x2(x, positions) * y).sum(), (x * unpool_2x2(y, positions)).sum())


def test_a_compiled_network_agrees_with_the_eager_one() -> None:
    torch.manual_seed(0)
    net = SegNet(width=4).double()
    image = torch.randn(2, 3, 64, 32).double()
    results = []
    for features in (net.features, torch.compile(net.features, backend="eager", fullgraph=True), net._fusible_features):
        torch.manual_seed(1)  # for equal dropout masks
        out = features(image)
        results.append([out, *torch.autograd.grad(out.square().sum(), net.shared_parameters())])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
