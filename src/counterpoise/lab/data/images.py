"""Images with dense targets, stored on the device that trains on them."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

CLASSES = ("bed", "books", "ceiling", "chair", "floor", "furniture", "objects", "painting", "sofa", "table", "tv",
           "wall", "window")  # fmt: skip
"""The 13 classes of NYUv2, in the order of their labels."""

IGNORED = 255  # label of pixels without a class
FARTHEST = 10.0  # metres; larger depths are clipped


@dataclass(frozen=True)
class Images:
    """N images in compact types, channels last. Depth 0 and normal 0 mean unknown.

    Args:
        rgb: Colours (N, H, W, 3), uint8.
        label: Classes (N, H, W), uint8: 0–12, or 255.
        depth: Depth (N, H, W) in metres, float16.
        normals: Unit normals (N, H, W, 3), float16.
        train: Numbers of the training images.
        held_out: Numbers of the held-out images.
    """

    rgb: Tensor
    label: Tensor
    depth: Tensor
    normals: Tensor
    train: Tensor
    held_out: Tensor

    def __len__(self) -> int:
        return len(self.rgb)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.rgb.shape[1], self.rgb.shape[2]

    def to(self, device: str | torch.device) -> "Images":
        """Return a copy with all pixels on another device."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name not in ("train", "held_out")}
        return replace(self, **moved)


PLANES = {"rgb": (torch.uint8, (3,)), "label": (torch.uint8, ()), "depth": (torch.float16, ()),
          "normals": (torch.float16, (3,))}  # fmt: skip
"""Type and channels of each plane of pixels."""
