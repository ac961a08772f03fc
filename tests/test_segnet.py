"""The network that the benchmarks and the NYUv2 studies train."""

import torch

from counterpoise.lab.models import SegNet


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
