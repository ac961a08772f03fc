"""The SegNet of the paper's NYUv2 studies: 18,869,137 parameters with its three heads."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .pooling import picked, placed, winners

STAGES = (1, 2, 4, 8, 8)  # the widths of the encoder, in units of the first
NYUV2_HEADS = {"seg": 13, "depth": 1, "normals": 3}


def conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def stage(before: int, middle: int, after: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(conv(before, middle), conv(middle, after), nn.Dropout2d(dropout))


class SegNet(nn.Module):
    """An encoder of five stages, the mirrored decoder with max-unpooling, and one small head per dense task.

    Args:
        heads: the output channels of each task; the three of NYUv2 when not given.
        width: channels of the first stage; 64 in the paper, less for tests.
        dropout: the share of channels that each stage drops.

    Input sides may be any size of at least 32; the output has the input's size.
    """

    def __init__(self, heads: Mapping[str, int] = NYUV2_HEADS, *, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        if not heads:
            raise ValueError("heads is empty, expected the output channels of at least one task")
        widths = [width * factor for factor in STAGES]
        narrower = (width, *widths[:-1])  # what each decoder stage hands on: 64, 64, 128, 256, 512
        self.encoder = nn.ModuleList(
            stage(before, after, after, dropout) for before, after in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.decoder = nn.ModuleList(
            stage(before, before, after, dropout) for before, after in zip(widths[::-1], narrower[::-1], strict=True)
        )
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2)
        self.heads = nn.ModuleDict(
            {
                task: nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU(inplace=True), nn.Conv2d(width, channels, 1))
                for task, channels in heads.items()
            }
        )

    def shared_parameters(self) -> list[nn.Parameter]:
        """What all tasks share: everything but the heads."""
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.features(image)
        return {task: head(features) for task, head in self.heads.items()}

    def features(self, image: Tensor) -> Tensor:
        """The shared representation, (N, width, H, W)."""
        if torch.compiler.is_compiling() and not any(side % 2 ** len(STAGES) for side in image.shape[2:]):
            return self._fused(image)
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

    def _fused(self, image: Tensor) -> Tensor:
        """The same for a compiler, where all windows are whole."""
        x = image
        pooled: list[Tensor] = []
        for down in self.encoder:
            x = down(x)
            pooled.append(winners(x))
            x = picked(x, pooled[-1])
        for up in self.decoder:
            x = up(placed(x, pooled.pop()))
        return x
