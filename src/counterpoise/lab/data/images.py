"""Images with dense targets, held where they are trained on."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

CLASSES = ("bed", "books", "ceiling", "chair", "floor", "furniture", "objects", "painting", "sofa", "table", "tv",
           "wall", "window")  # fmt: skip
"""NYUv2's 13 classes, in the order of their labels."""

IGNORED = 255  # the label of a pixel that belongs to no class
FARTHEST = 10.0  # metres: depth is cut off there


@dataclass(frozen=True)
class Images:
    """N images as they are kept: small types, channels last. Depth 0 and normal 0 mean unknown."""

    rgb: Tensor  # (N, H, W, 3) uint8
    label: Tensor  # (N, H, W) uint8: 0–12, or 255
    depth: Tensor  # (N, H, W) float16, metres
    normals: Tensor  # (N, H, W, 3) float16, of unit length
    train: Tensor  # which are trained on
    held_out: Tensor  # and which are held out

    def __len__(self) -> int:
        return len(self.rgb)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.rgb.shape[1], self.rgb.shape[2]

    def to(self, device: str | torch.device) -> "Images":
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name not in ("train", "held_out")}
        return replace(self, **moved)


PLANES = {"rgb": (torch.uint8, (3,)), "label": (torch.uint8, ()), "depth": (torch.float16, ()),
          "normals": (torch.float16, (3,))}  # fmt: skip
"""The type and the channels of what is kept for each pixel."""
