"""Normals from depth are exact on planes, accurate on spheres, and unaffected by edges."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.data.normals import Camera, normals

CAMERA = Camera(60.0, 62.0, 39.5, 29.5)
HEIGHT, WIDTH = 60, 80


def rays() -> Tensor:
    """Return the rays (H, W, 3) with z = 1."""
    v, u = torch.meshgrid(torch.arange(HEIGHT) * 1.0, torch.arange(WIDTH) * 1.0, indexing="ij")
    return torch.stack(((u - CAMERA.cx) / CAMERA.fx, (v - CAMERA.cy) / CAMERA.fy, torch.ones_like(u)), -1)


def plane(normal: Tensor, distance: float) -> Tensor:
    """Return the depth of the plane n·X = −distance, whose normal points towards the camera."""
    return -distance / (rays() @ normal)


def angle(found: Tensor, true: Tensor) -> Tensor:
    return torch.rad2deg(torch.acos((found * true).sum(-1).clamp(-1, 1)))


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(0.5, 5.0))
def test_planes_are_exact(x: float, y: float, distance: float) -> None:
    normal = F.normalize(torch.tensor([x, y, -1.0]), dim=0)
    assume(
        float((F.normalize(rays(), dim=-1) @ normal).max()) < -0.3
    )  # at grazing angles, neighbouring depths differ like edges
    depth = plane(normal, distance)
    found = normals(depth[None], CAMERA)[0]
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(HEIGHT, WIDTH))
    assert float(angle(found, normal).max()) < 0.2


def test_spheres_are_accurate_except_at_their_rim() -> None:
    centre, radius = torch.tensor([0.0, 0.0, 3.0]), 1.2
    ray = rays()
    a, b = ray.square().sum(-1), ray @ centre
    discriminant = b * b - a * (centre @ centre - radius**2)
    depth = torch.where(discriminant > 0, (b - discriminant.clamp_min(0).sqrt()) / a, 0.0)
    true = F.normalize(ray * depth.unsqueeze(-1) - centre, dim=-1)
    off = angle(normals(depth[None], CAMERA)[0], true)
    inner = F.normalize(ray, dim=-1).mul(true).sum(-1).abs() > 0.5
    assert float(off[inner & (depth > 0)].median()) < 2
    assert float(off[inner & (depth > 0)].quantile(0.95)) < 8


def test_depth_step_does_not_change_normals() -> None:
    """Two walls are 60 cm apart and one is slanted. An unweighted fit would tilt all normals near the step."""
    slanted = F.normalize(torch.tensor([0.4, 0.0, -1.0]), dim=0)
    left, right = plane(torch.tensor([0.0, 0.0, -1.0]), 2.0), plane(slanted, 2.6)
    columns = torch.arange(WIDTH) < 40
    found = normals(torch.where(columns, left, right)[None], CAMERA)[0]
    true = torch.where(columns[:, None], torch.tensor([0.0, 0.0, -1.0]), slanted)
    assert float(angle(found, true).max()) < 1


def test_quantised_depth_gives_accurate_normals() -> None:
    normal = F.normalize(torch.tensor([0.3, -0.4, -1.0]), dim=0)
    depth, step = plane(normal, 2.0), 0.02
    found = normals((depth / step).round()[None] * step, CAMERA, torch.tensor([step]))[0]
    assert float(angle(found, normal).median()) < 2


def test_missing_depth_has_no_normal_and_is_ignored() -> None:
    normal = torch.tensor([0.0, 0.0, -1.0])
    depth = plane(normal, 2.0)
    depth[20:30, 30:45] = 0
    found = normals(depth[None], CAMERA)[0]
    assert torch.equal(found[20:30, 30:45], torch.zeros(10, 15, 3))
    assert float(angle(found, normal)[depth > 0].max()) < 0.2
    assert not normals(torch.zeros(2, 8, 9), CAMERA).any()


def test_normals_point_towards_the_camera() -> None:
    depth = 1 + torch.rand(1, HEIGHT, WIDTH)
    assert bool(((normals(depth, CAMERA)[0] * rays()).sum(-1) <= 1e-6).all())


def test_error_names_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"\(60, 80\), expected \(images, height, width\)"):
        normals(torch.ones(HEIGHT, WIDTH), CAMERA)
    assert Camera(2, 4, 6, 8).scaled(0.5) == Camera(1, 2, 3, 4)
    assert math.isclose(CAMERA.fx, 60)
