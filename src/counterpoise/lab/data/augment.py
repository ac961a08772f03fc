"""Crops and flips of a batch on the device where its images are, without a word to the host.

Each image is cropped to 1/s of its size, stretched back and perhaps mirrored: colours and normals bilinearly, labels
and depth by the nearest pixel, as `torch.nn.functional.interpolate` does it on the crop. Depth is divided by s, since
things look closer; a mirrored normal points the other way in x.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .images import Images

SCALES = (1.0, 1.2, 1.5)


class Batch(NamedTuple):
    """What a network is trained on: images (B, 3, H, W) in [0, 1], labels (B, H, W), depth (B, 1, H, W) in metres,
    normals (B, 3, H, W). Label 255, depth 0 and normal 0 are left out of losses and metrics."""

    rgb: Tensor
    label: Tensor
    depth: Tensor
    normals: Tensor


@dataclass(frozen=True)
class Draws:
    """An epoch's random choices, one for each image in its order."""

    order: Tensor  # which image
    scale: Tensor  # s
    height: Tensor  # of the crop
    width: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor

    def take(self, places: Tensor) -> "Draws":
        """Those of some places in the order."""
        return Draws(**{name: value.index_select(0, places) for name, value in vars(self).items()})

    def to(self, device: str | torch.device) -> "Draws":
        return Draws(**{name: value.to(device) for name, value in vars(self).items()})

    def become(self, other: "Draws") -> None:
        """Takes over another epoch's draws, in place; from pinned memory without a wait."""
        cuda = self.order.is_cuda
        for name, value in vars(self).items():
            new = getattr(other, name)
            value.copy_(new.pin_memory() if cuda else new, non_blocking=cuda)


def draw(images: Images, *, seed: int, loader_seed: int, epoch: int) -> Draws:
    """An epoch's draws, made on the host. They follow from the seeds and the epoch alone: a resumed run makes the same.

    The order comes from the loader's seed, crops and flips from the run's.
    """
    rows, (height, width) = len(images.train), images.size
    order = torch.randperm(rows, generator=stream(loader_seed, epoch, 0))
    generator = stream(seed, epoch, 1)
    chosen = torch.randint(len(SCALES), (rows,), generator=generator)
    scale = torch.tensor(SCALES)[chosen]
    tall, wide = (torch.tensor([int(side / s) for s in SCALES])[chosen] for side in (height, width))
    spot = torch.rand(2, rows, generator=generator)
    top, left = (spot[0] * (height - tall + 1)).long(), (spot[1] * (width - wide + 1)).long()
    flip = torch.rand(rows, generator=generator) < 0.5
    return Draws(images.train[order], scale, tall, wide, top, left, flip)


def stream(seed: int, epoch: int, purpose: int) -> torch.Generator:
    """A random stream of its own for each purpose in each epoch."""
    return torch.Generator().manual_seed(mixed(seed, epoch, purpose))


def mixed(seed: int, epoch: int, purpose: int) -> int:
    """One seed out of three numbers, far apart for neighbours."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch} {purpose}".encode()).digest()[:7], "big")


def augmented(images: Images, draws: Draws) -> Batch:
    """The batch that the draws say."""
    height, width = images.size
    rows, columns = _Axis(draws.top, draws.height, height, None), _Axis(draws.left, draws.width, width, draws.flip)
    rgb = _bilinear(images.rgb, draws.order, rows, columns) / 255
    normals = _bilinear(images.normals, draws.order, rows, columns)
    mirrored = torch.where(draws.flip, -1.0, 1.0)
    normals = normals * torch.stack((mirrored, torch.ones_like(mirrored), torch.ones_like(mirrored)), 1)[:, None, None]
    depth = _real(_nearest(images.depth, draws.order, rows, columns)) / draws.scale.view(-1, 1, 1)
    label = _nearest(images.label, draws.order, rows, columns).long()
    return Batch(rgb.permute(0, 3, 1, 2), label, depth.unsqueeze(1), F.normalize(normals, dim=-1).permute(0, 3, 1, 2))


def plain(images: Images, chosen: Tensor) -> Batch:
    """Images as they are, for evaluation."""
    return Batch(
        _real(images.rgb[chosen]).div(255).permute(0, 3, 1, 2),
        images.label[chosen].long(),
        _real(images.depth[chosen]).unsqueeze(1),
        _real(images.normals[chosen]).permute(0, 3, 1, 2),
    )


def _real(stored: Tensor) -> Tensor:
    """As numbers to compute with."""
    return stored.to(torch.get_default_dtype())


class _Axis:
    """Where each output row (or column) of each image comes from: (B, size) indices and the second one's share."""

    def __init__(self, start: Tensor, length: Tensor, size: int, flip: Tensor | None) -> None:
        out = torch.arange(size, device=start.device)
        if flip is not None:
            out = torch.where(flip.unsqueeze(1), size - 1 - out, out)
        start, length = start.unsqueeze(1), length.unsqueeze(1)
        ratio = length / size
        self.nearest = start + torch.minimum((out * length) // size, length - 1)
        place = ((out + 0.5) * ratio - 0.5).clamp_min(0)
        first = torch.minimum(place.long(), length - 1)
        self.first, self.second = start + first, start + torch.minimum(first + 1, length - 1)
        self.share = place - first


def _bilinear(source: Tensor, chosen: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    """(N, H, W, 3) to (B, H, W, 3)."""
    which = chosen.view(-1, 1, 1)

    def along(row: Tensor) -> Tensor:
        at = row.unsqueeze(2)
        left, right = (_real(source[which, at, x.unsqueeze(1)]) for x in (columns.first, columns.second))
        return torch.lerp(left, right, columns.share[:, None, :, None])

    return torch.lerp(along(rows.first), along(rows.second), rows.share[:, :, None, None])


def _nearest(source: Tensor, chosen: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    return source[chosen.view(-1, 1, 1), rows.nearest.unsqueeze(2), columns.nearest.unsqueeze(1)]
