"""Random crops and flips of a batch on the device of its images, without synchronising with the host.

Each image is cropped to 1/s of its size, resized back and flipped with probability ½: colours and normals bilinearly,
labels and depth by the nearest pixel, as `torch.nn.functional.interpolate` does on the crop. Depth is divided by s,
because objects appear closer. Flipping negates the x component of normals.
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
    """Images (B, 3, H, W) in [0, 1], labels (B, H, W), depth (B, 1, H, W) in metres and normals (B, 3, H, W).

    Losses and metrics ignore label 255, depth 0 and normal 0.
    """

    rgb: Tensor
    label: Tensor
    depth: Tensor
    normals: Tensor


@dataclass(frozen=True)
class AugmentationPlan:
    """The random choices of an epoch, one entry per image in training order.

    Args:
        order: Image numbers.
        scale: Scales s.
        height: Heights of the crops.
        width: Widths of the crops.
        top: First rows of the crops.
        left: First columns of the crops.
        flip: Whether to flip.
    """

    order: Tensor
    scale: Tensor
    height: Tensor
    width: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor

    def select(self, positions: Tensor) -> "AugmentationPlan":
        """Return the entries at some positions of the training order."""
        return AugmentationPlan(**{name: value.index_select(0, positions) for name, value in vars(self).items()})

    def to(self, device: str | torch.device) -> "AugmentationPlan":
        """Return a copy on another device."""
        return AugmentationPlan(**{name: value.to(device) for name, value in vars(self).items()})

    def copy_from(self, other: "AugmentationPlan") -> None:
        """Copy another epoch's choices in place. On CUDA, the copy is asynchronous from pinned memory."""
        cuda = self.order.is_cuda
        for name, value in vars(self).items():
            new = getattr(other, name)
            value.copy_(new.pin_memory() if cuda else new, non_blocking=cuda)


def draw_augmentation(images: Images, *, seed: int, loader_seed: int, epoch: int) -> AugmentationPlan:
    """Draw the random choices of an epoch on the host.

    They depend on the seeds and the epoch only, so that a resumed run draws the same.

    Args:
        images: The images.
        seed: Seed of crops and flips.
        loader_seed: Seed of the training order.
        epoch: Number of the epoch.
    """
    rows, (height, width) = len(images.train), images.size
    order = torch.randperm(rows, generator=make_generator(loader_seed, epoch, 0))
    generator = make_generator(seed, epoch, 1)
    choice = torch.randint(len(SCALES), (rows,), generator=generator)
    scale = torch.tensor(SCALES)[choice]
    crop_height, crop_width = (torch.tensor([int(side / s) for s in SCALES])[choice] for side in (height, width))
    corner = torch.rand(2, rows, generator=generator)
    top = (corner[0] * (height - crop_height + 1)).long()
    left = (corner[1] * (width - crop_width + 1)).long()
    flip = torch.rand(rows, generator=generator) < 0.5
    return AugmentationPlan(images.train[order], scale, crop_height, crop_width, top, left, flip)


def make_generator(seed: int, epoch: int, purpose: int) -> torch.Generator:
    """Return an independent generator for each purpose in each epoch."""
    return torch.Generator().manual_seed(mix_seed(seed, epoch, purpose))


def mix_seed(seed: int, epoch: int, purpose: int) -> int:
    """Hash three numbers to one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch} {purpose}".encode()).digest()[:7], "big")


def augment_batch(images: Images, choices: AugmentationPlan) -> Batch:
    """Return the augmented batch of some random choices."""
    height, width = images.size
    rows, columns = (
        _Axis(choices.top, choices.height, height, None),
        _Axis(choices.left, choices.width, width, choices.flip),
    )
    rgb = _bilinear(images.rgb, choices.order, rows, columns) / 255
    normals = _bilinear(images.normals, choices.order, rows, columns)
    mirrored = torch.where(choices.flip, -1.0, 1.0)
    normals = normals * torch.stack((mirrored, torch.ones_like(mirrored), torch.ones_like(mirrored)), 1)[:, None, None]
    depth = _to_float(_nearest(images.depth, choices.order, rows, columns)) / choices.scale.view(-1, 1, 1)
    label = _nearest(images.label, choices.order, rows, columns).long()
    return Batch(rgb.permute(0, 3, 1, 2), label, depth.unsqueeze(1), F.normalize(normals, dim=-1).permute(0, 3, 1, 2))


def evaluation_batch(images: Images, numbers: Tensor) -> Batch:
    """Return images without augmentation."""
    return Batch(
        _to_float(images.rgb[numbers]).div(255).permute(0, 3, 1, 2),
        images.label[numbers].long(),
        _to_float(images.depth[numbers]).unsqueeze(1),
        _to_float(images.normals[numbers]).permute(0, 3, 1, 2),
    )


def _to_float(stored: Tensor) -> Tensor:
    """Convert stored values to the default floating-point type."""
    return stored.to(torch.get_default_dtype())


class _Axis:
    """Source indices (B, size) of each output row or column, and the weight of the second one in the interpolation."""

    def __init__(self, start: Tensor, length: Tensor, size: int, flip: Tensor | None) -> None:
        out = torch.arange(size, device=start.device)
        if flip is not None:
            out = torch.where(flip.unsqueeze(1), size - 1 - out, out)
        start, length = start.unsqueeze(1), length.unsqueeze(1)
        ratio = length / size
        self.nearest = start + torch.minimum((out * length) // size, length - 1)
        position = ((out + 0.5) * ratio - 0.5).clamp_min(0)
        first = torch.minimum(position.long(), length - 1)
        self.first, self.second = start + first, start + torch.minimum(first + 1, length - 1)
        self.weight = position - first


def _bilinear(source: Tensor, order: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    """Interpolate images (N, H, W, 3) to a batch (B, H, W, 3)."""
    image = order.view(-1, 1, 1)

    def interpolate_columns(row: Tensor) -> Tensor:
        row = row.unsqueeze(2)
        left, right = (_to_float(source[image, row, x.unsqueeze(1)]) for x in (columns.first, columns.second))
        return torch.lerp(left, right, columns.weight[:, None, :, None])

    return torch.lerp(interpolate_columns(rows.first), interpolate_columns(rows.second), rows.weight[:, :, None, None])


def _nearest(source: Tensor, order: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    return source[order.view(-1, 1, 1), rows.nearest.unsqueeze(2), columns.nearest.unsqueeze(1)]
