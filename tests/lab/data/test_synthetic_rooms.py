"""Ray-cast rooms: depth, normals and labels that fit together exactly."""

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
    """(N, H, W, 3) in the camera's axes."""
    c = camera()
    v, u = torch.meshgrid(torch.arange(HEIGHT) * 1.0, torch.arange(WIDTH) * 1.0, indexing="ij")
    return torch.stack(((u - c.cx) / c.fx, (v - c.cy) / c.fy, torch.ones_like(u)), -1) * depth.float().unsqueeze(-1)


def test_neighbours_on_one_plane_lie_on_it() -> None:
    images = make_rooms(6, 2, HEIGHT, WIDTH)
    point, normal = points(images.depth), images.normals.float()
    same = (images.label[:, :, 1:] == images.label[:, :, :-1]) & (
        (normal[:, :, 1:] - normal[:, :, :-1]).abs().amax(-1) < 1e-3
    )
    between = point[:, :, 1:] - point[:, :, :-1]
    off = (between * normal[:, :, 1:]).sum(-1).abs()[same]
    rounding = images.depth[:, :, 1:].float()[same] * 2**-9  # of half precision
    share = (off < rounding).float().mean()
    assert same.float().mean() > 0.8
    assert share > 0.99  # the rest are two parallel faces, one behind the other


def test_normals_are_unit_face_the_camera_and_agree_with_depth() -> None:
    images = make_rooms(8, 0, HEIGHT, WIDTH)
    normal = images.normals.float()
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones(8, HEIGHT, WIDTH), atol=2e-3, rtol=0)
    facing = (F.normalize(points(images.depth), dim=-1) * normal).sum(-1)
    assert float(facing.max()) < 1e-2
    fitted = normals(images.depth, camera())
    away = torch.rad2deg(torch.acos((fitted * normal).sum(-1).clamp(-1, 1)))
    assert float(away.median()) < 2


def test_the_floor_is_level_and_below_and_every_class_is_somewhere() -> None:
    images = make_rooms(48, 0, 48, 64)
    assert set(images.label.unique().tolist()) == set(range(len(CLASSES)))
    assert images.depth.min() > 0.2
    assert images.depth.max() < 10
    floor, ceiling = (images.label == CLASS[name] for name in ("floor", "ceiling"))
    assert float(images.normals[..., 1][floor].max()) < -0.9  # up, for a camera that looks at most 20° down
    assert float(images.normals[..., 1][ceiling].min()) > 0.9
    assert images.rgb.float().std() > 30


def test_a_scene_follows_from_its_number_alone() -> None:
    few, many = make_rooms(3, 0, 32, 48), make_rooms(20, 4, 32, 48)
    for name in ("rgb", "label", "depth", "normals"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:3])
    assert (len(many.train), len(many.held_out)) == (20, 4)
    assert not torch.equal(make_rooms(3, 0, 32, 48, seed=1).label, few.label)


def test_a_scene_draws_less_than_its_row() -> None:
    draws = torch.rand(1, COLUMNS)
    first = _cast(draws, 32, 48, 0)
    draws[:, -20:] = 0.5
    assert all(torch.equal(a, b) for a, b in zip(first, _cast(draws, 32, 48, 0), strict=True))
