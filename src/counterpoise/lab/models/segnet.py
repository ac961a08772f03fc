"""The SegNet of the NYUv2 studies, with 18,869,137 parameters for three tasks."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .pooling import argmax_2x2, pool_2x2, unpool_2x2

STAGES = (1, 2, 4, 8, 8)  # widths of the encoder stages, relative to the first
NYUV2_HEADS = {"seg": 13, "depth": 1, "normals": 3}


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def _stage(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, hidden), _conv(hidden, outputs), nn.Dropout2d(dropout))


class SegNet(nn.Module):
    """A SegNet: an encoder of five stages, a mirrored decoder with max-unpooling, and one small head per task.

    The height and width of the input must be at least 32. The outputs have the size of the input.

    Args:
        heads: the number of output channels of each task; by default the three tasks of NYUv2.
        width: the number of channels of the first stage; 64 in the paper.
        dropout: the probability of dropping a channel after each stage.
    """

    def __init__(self, heads: Mapping[str, int] = NYUV2_HEADS, *, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        if not heads:
            raise ValueError("heads is empty, expected the output channels of at least one task")
        widths = [width * factor for factor in STAGES]
        outputs = (width, *widths[:-1])  # of the decoder stages, from the last to the first: 64, 64, 128, 256, 512
        self.encoder = nn.ModuleList(
            _stage(inputs, width, width, dropout) for inputs, width in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.decoder = nn.ModuleList(
            _stage(inputs, inputs, after, dropout) for inputs, after in zip(widths[::-1], outputs[::-1], strict=True)
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
        """Return the parameters that all tasks share: everything but the heads."""
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.features(image)
        return {task: head(features) for task, head in self.heads.items()}

    def features(self, image: Tensor) -> Tensor:
        """Return the shared representation, (N, width, H, W)."""
        if torch.compiler.is_compiling() and not any(side % 2 ** len(STAGES) for side in image.shape[2:]):
            return self._fusible_features(image)
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

    def _fusible_features(self, image: Tensor) -> Tensor:
        """Return the features by operations that a compiler can fuse. The sides must be multiples of 32."""
        x = image
        positions: list[Tensor] = []
        for down in self.encoder:
            x = down(x)
            positions.append(argmax_2x2(x))
            x = pool_2x2(x, positions[-1])
        for up in self.decoder:
            x = up(unpool_2x2(x, positions.pop()))
        return x
