"""The SegNet of the paper's NYUv2 studies: 18,869,137 parameters with its three heads."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
NYUV2_HEADS = {"seg": 13, "depth": 1, "normals": 3}


def conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def stage(before: int, middle: int, after: int) -> nn.Sequential:
    return nn.Sequential(conv(before, middle), conv(middle, after), nn.Dropout2d(0.1))


class SegNet(nn.Module):
    """An encoder of five stages, the mirrored decoder with max-unpooling, and one small head per dense task.

    Args:
        heads: the output channels of each task; the three of NYUv2 when not given.

    Input sides may be any size of at least 32; the output has the input's size.
    """

    def __init__(self, heads: Mapping[str, int] = NYUV2_HEADS) -> None:
        super().__init__()
        narrower = (*WIDTHS[:1], *WIDTHS[:-1])  # what each decoder stage hands on: 64, 64, 128, 256, 512
        self.encoder = nn.ModuleList(
            stage(before, after, after) for before, after in zip((3, *WIDTHS[:-1]), WIDTHS, strict=True)
        )
        self.decoder = nn.ModuleList(
            stage(before, before, after) for before, after in zip(WIDTHS[::-1], narrower[::-1], strict=True)
        )
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2)
        width = WIDTHS[0]
        self.heads = nn.ModuleDict(
            {
                task: nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU(inplace=True), nn.Conv2d(width, channels, 1))
                for task, channels in heads.items()
            }
        )

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.features(image)
        return {task: head(features) for task, head in self.heads.items()}

    def features(self, image: Tensor) -> Tensor:
        """The shared representation, (N, 64, H, W)."""
        x = image
        pooled: list[tuple[Tensor, torch.Size]] = []
        for down in self.encoder:
            x = down(x)
            size = x.shape
            x, indices = self.pool(x)
            pooled.append((indices, size))
        for up, (indices, size) in zip(self.decoder, reversed(pooled), strict=True):
            x = up(self.unpool(x, indices, output_size=size))
        return x
