"""Surface normals from depth: an edge-preserving local plane fit in inverse depth.

On a plane, the inverse depth is an affine function of the pixel: 1/Z = A x + B y + C with x = (u − cx)/fx and
y = (v − cy)/fy, where (A, B, C) is the normal divided by the distance of the plane. A weighted linear fit around each
pixel therefore gives its normal, and it is exact on planes for any weights. The weights exclude neighbours that belong
to another surface.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

VERSION = 1  # part of every cache name; increase it when the numbers change

RADIUS, STRIDE = 8, 2  # of the window, in pixels
EDGE = 0.06  # relative difference of inverse depth that suggests another surface
RESIDUAL = 0.015  # the same relative to the plane of the first fit: about the error of 8-bit depth
CHUNK = 16  # images per chunk


@dataclass(frozen=True)
class Camera:
    """Pinhole intrinsics in pixels."""

    fx: float
    fy: float
    cx: float
    cy: float

    def scaled(self, factor: float) -> "Camera":
        """Return the intrinsics for a resized image."""
        return Camera(self.fx * factor, self.fy * factor, self.cx * factor, self.cy * factor)


KINECT = Camera(518.858, 519.470, 325.582, 253.736)
"""The colour camera of NYUv2 at 480 × 640."""


@torch.no_grad()
def normals(depth: Tensor, camera: Camera, step: Tensor | None = None) -> Tensor:
    """Return unit normals (N, H, W, 3) that point towards the camera, and 0 where depth is missing.

    Args:
        depth: Depth (N, H, W) in metres. x points right, y down and z forward.
        camera: Intrinsics of the camera.
        step: Quantisation step of the depth of each image (N). Differences of that size are not treated as edges.
    """
    if depth.dim() != 3:
        raise ValueError(f"depth has shape {tuple(depth.shape)}, expected (images, height, width)")
    step = depth.new_zeros(len(depth), dtype=torch.float32) if step is None else step.float()
    pairs = zip(depth.split(CHUNK), step.split(CHUNK), strict=True)
    parts = [_normals(part.float(), camera, width.view(-1, 1, 1)) for part, width in pairs]
    return torch.cat(parts) if parts else depth.new_zeros((*depth.shape, 3), dtype=torch.float32)


def _normals(depth: Tensor, camera: Camera, step: Tensor) -> Tensor:
    height, width = depth.shape[-2:]
    valid = depth > 0
    inverse = torch.where(valid, 1 / depth.clamp_min(1e-6), 0.0)
    padded = F.pad(inverse, (RADIUS,) * 4)
    level = inverse.square() * step
    plane = _fit(inverse, padded, camera, inverse * EDGE + level, None)
    a, b, c = _fit(inverse, padded, camera, inverse * RESIDUAL + level, plane)  # c: the inverse depth at the pixel
    y = (torch.arange(height, device=depth.device, dtype=depth.dtype) - camera.cy).div(camera.fy).unsqueeze(1)
    x = (torch.arange(width, device=depth.device, dtype=depth.dtype) - camera.cx).div(camera.fx)
    away = torch.stack((a, b, c - a * x - b * y), -1)  # (A, B, C)·(x, y, 1) = 1/Z > 0
    return -F.normalize(away, dim=-1) * valid.unsqueeze(-1)


def _fit(
    inverse: Tensor, padded: Tensor, camera: Camera, limit: Tensor, plane: tuple[Tensor, Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a plane (slope in x, slope in y, value at the pixel) around each pixel, in normalised coordinates.

    The weight of a neighbour decreases with its difference from the pixel, or from `plane`, relative to `limit`.
    """
    height, width = inverse.shape[-2:]
    limit = limit.clamp_min(1e-6)
    sums = [torch.zeros_like(inverse) for _ in range(9)]
    for dv in range(-RADIUS, RADIUS + 1, STRIDE):
        for du in range(-RADIUS, RADIUS + 1, STRIDE):
            near = padded[:, RADIUS + dv : RADIUS + dv + height, RADIUS + du : RADIUS + du + width]
            x, y = du / camera.fx, dv / camera.fy
            expected = inverse if plane is None else plane[2] + plane[0] * x + plane[1] * y
            distance = 2 * (du * du + dv * dv) / RADIUS**2
            weight = torch.exp(-((near - expected) / limit).square() - distance) * (near > 0)
            value = weight * near
            terms = (weight, weight, weight, weight, weight, weight, value, value, value)
            for total, term, factor in zip(sums, terms, (1, x, y, x * x, x * y, y * y, 1, x, y), strict=True):
                if factor:
                    total.add_(term, alpha=factor)
    return _solve(*sums, fallback=inverse)


def _solve(
    w: Tensor, wx: Tensor, wy: Tensor, wxx: Tensor, wxy: Tensor, wyy: Tensor, r: Tensor, rx: Tensor, ry: Tensor,
    *, fallback: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Solve the centred 3 × 3 normal equations as a 2 × 2 system for the slopes. Degenerate systems get slopes of 0."""
    w = w.clamp_min(1e-12)
    mx, my, mr = wx / w, wy / w, r / w
    xx, xy, yy = wxx / w - mx * mx, wxy / w - mx * my, wyy / w - my * my
    rx, ry = rx / w - mx * mr, ry / w - my * mr
    determinant = xx * yy - xy * xy
    regular = determinant > 1e-4 * (xx + yy).square()  # the points are not collinear
    safe = torch.where(regular, determinant, 1.0)
    a = torch.where(regular, (rx * yy - ry * xy) / safe, 0.0)
    b = torch.where(regular, (ry * xx - rx * xy) / safe, 0.0)
    c = torch.where(regular, mr - a * mx - b * my, fallback)
    return a, b, c
