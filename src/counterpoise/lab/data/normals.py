"""Surface normals from depth: a local plane fit in inverse depth that does not reach over edges.

On a plane the inverse depth is an affine function of the pixel, 1/Z = A x + B y + C with x = (u − cx)/fx and
y = (v − cy)/fy, and (A, B, C) is the normal divided by the plane's distance. So one weighted linear fit around each
pixel gives its normal, exactly on planes whatever the weights are: these only decide who belongs to the surface.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

VERSION = 1  # part of every cache: raise it when the numbers change

RADIUS, STRIDE = 8, 2  # the window in pixels, and every how many of them are looked at
EDGE = 0.06  # relative difference of inverse depth beyond which a neighbour is hardly of this surface
RESIDUAL = 0.015  # the same against the plane of the first fit: about the error of an 8-bit depth
CHUNK = 16  # images at once


@dataclass(frozen=True)
class Camera:
    """Pinhole intrinsics in pixels."""

    fx: float
    fy: float
    cx: float
    cy: float

    def scaled(self, factor: float) -> "Camera":
        return Camera(self.fx * factor, self.fy * factor, self.cx * factor, self.cy * factor)


KINECT = Camera(518.858, 519.470, 325.582, 253.736)
"""NYUv2's colour camera at 480 × 640."""


@torch.no_grad()
def normals(depth: Tensor, camera: Camera, step: Tensor | None = None) -> Tensor:
    """Unit normals (N, H, W, 3) of depths (N, H, W) in metres; 0 where depth is missing.

    x points right, y down, z forward; normals point towards the camera. `step` (N) is the width of a level where depth
    is quantised: differences of that size are no edges.
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
    a, b, c = _fit(
        inverse, padded, camera, inverse * RESIDUAL + level, plane
    )  # c is the inverse depth at the pixel itself
    y = (torch.arange(height, device=depth.device, dtype=depth.dtype) - camera.cy).div(camera.fy).unsqueeze(1)
    x = (torch.arange(width, device=depth.device, dtype=depth.dtype) - camera.cx).div(camera.fx)
    found = torch.stack((a, b, c - a * x - b * y), -1)
    # (A, B, C)·(x, y, 1) = 1/Z > 0: this one points away from the camera.
    return -F.normalize(found, dim=-1) * valid.unsqueeze(-1)


def _fit(
    inverse: Tensor, padded: Tensor, camera: Camera, limit: Tensor, plane: tuple[Tensor, Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The plane (slope in x, slope in y, value at the pixel) around each pixel, in normalised coordinates.

    A neighbour weighs the less the more it differs from the pixel, or from `plane`; `limit` is the scale of that.
    """
    height, width = inverse.shape[-2:]
    limit = limit.clamp_min(1e-6)
    sums = [torch.zeros_like(inverse) for _ in range(9)]
    for dv in range(-RADIUS, RADIUS + 1, STRIDE):
        for du in range(-RADIUS, RADIUS + 1, STRIDE):
            near = padded[:, RADIUS + dv : RADIUS + dv + height, RADIUS + du : RADIUS + du + width]
            x, y = du / camera.fx, dv / camera.fy
            expected = inverse if plane is None else plane[2] + plane[0] * x + plane[1] * y
            spread = 2 * (du * du + dv * dv) / RADIUS**2
            weight = torch.exp(-((near - expected) / limit).square() - spread) * (near > 0)
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
    """The 3 × 3 normal equations, centred: a 2 × 2 system for the slopes. Without enough points they are 0."""
    w = w.clamp_min(1e-12)
    mx, my, mr = wx / w, wy / w, r / w
    xx, xy, yy = wxx / w - mx * mx, wxy / w - mx * my, wyy / w - my * my
    rx, ry = rx / w - mx * mr, ry / w - my * mr
    determinant = xx * yy - xy * xy
    enough = determinant > 1e-4 * (xx + yy).square()  # not all on one line
    safe = torch.where(enough, determinant, 1.0)
    a = torch.where(enough, (rx * yy - ry * xy) / safe, 0.0)
    b = torch.where(enough, (ry * xx - rx * xy) / safe, 0.0)
    c = torch.where(enough, mr - a * mx - b * my, fallback)
    return a, b, c
