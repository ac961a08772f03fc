"""Synthetic rooms: depth, normals and labels are consistent."""

import torch
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.data.images import CLASSES
from counterpoise.lab.data.normals import KINECT, Camera, normals
from counterpoise.lab.data.synthetic_rooms import CLASS, COLUMNS, _cast, make_rooms

HEIGHT, WIDTH = 72, 96


def camera() -> Camera:
    scaled = KINECT.scaled(WIDTH / 640)
    return Camera(scaled.fx, scaled.fy, (WIDTH - 1) / 2, (HEIGHT - 1) / 2)


def points(depth: Tensor) -> Tensor:
    """Return the points (N, H, W, 3) in camera coordinates."""
    c = camera()
    v, u = torch.meshgrid(torch.arange(HEIGHT) * 1.0, torch.arange(WIDTH) * 1.0, indexing="ij")
    return torch.stack(((u - c.cx) / c.fx, (v - c.cy) / c.fy, torch.ones_like(u)), -1) * depth.float().unsqueeze(-1)


def test_neighbouring_points_share_their_plane() -> None:
    images = make_rooms(6, 2, HEIGHT, WIDTH)
    point, normal = points(images.depth), images.normals.float()
    same = (images.label[:, :, 1:] == images.label[:, :, :-1]) & (
        (normal[:, :, 1:] - normal[:, :, :-1]).abs().amax(-1) < 1e-3
    )
    between = point[:, :, 1:] - point[:, :, :-1]
    off = (between * normal[:, :, 1:]).sum(-1).abs()[same]
    rounding = images.depth[:, :, 1:].float()[same] * 2**-9  # half precision
    share = (off < rounding).float().mean()
    assert same.float().mean() > 0.8
    assert share > 0.99  # the rest are parallel faces at different depths


def test_normals_have_unit_length_face_the_camera_and_match_depth() -> None:
    images = make_rooms(8, 0, HEIGHT, WIDTH)
    normal = images.normals.float()
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones(8, HEIGHT, WIDTH), atol=2e-3, rtol=0)
    facing = (F.normalize(points(images.depth), dim=-1) * normal).sum(-1)
    assert float(facing.max()) < 1e-2
    fitted = normals(images.depth, camera())
    away = torch.rad2deg(torch.acos((fitted * normal).sum(-1).clamp(-1, 1)))
    assert float(away.median()) < 2


def test_floor_is_horizontal_and_every_class_occurs() -> None:
    images = make_rooms(48, 0, 48, 64)
    assert set(images.label.unique().tolist()) == set(range(len(CLASSES)))
    assert images.depth.min() > 0.2
    assert images.depth.max() < 10
    floor, ceiling = (images.label == CLASS[name] for name in ("floor", "ceiling"))
    assert float(images.normals[..., 1][floor].max()) < -0.9  # upwards, with a camera pitch of at most 20°
    assert float(images.normals[..., 1][ceiling].min()) > 0.9
    assert images.rgb.float().std() > 30


def test_room_depends_on_its_number_only() -> None:
    few, many = make_rooms(3, 0, 32, 48), make_rooms(20, 4, 32, 48)
    for name in ("rgb", "label", "depth", "normals"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:3])
    assert (len(many.train), len(many.held_out)) == (20, 4)
    assert not torch.equal(make_rooms(3, 0, 32, 48, seed=1).label, few.label)


def test_room_uses_fewer_numbers_than_its_row_has() -> None:
    numbers = torch.rand(1, COLUMNS)
    first = _cast(numbers, 32, 48, 0)
    numbers[:, -20:] = 0.5
    assert all(torch.equal(a, b) for a, b in zip(first, _cast(numbers, 32, 48, 0), strict=True))
