"""Ray-cast synthetic rooms with exact depth, normals and labels, for machines without NYUv2.

A room is a box with a window, a painting and a screen on its walls. Its furniture consists of rotated boxes, upright
cylinders and spheres. A pinhole camera is placed at eye height near one wall. Room i depends only on row i of one
matrix of uniform numbers. All rooms of a chunk are cast together, on the CPU or a GPU.

World coordinates are in metres: x right, y **down** (the floor is y = 0), z forward, as in the camera.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .images import CLASSES, FARTHEST, Images
from .normals import KINECT

CHUNK = 16
NO_HIT = 1e6  # distance of rays that hit nothing
CLASS = {name: number for number, name in enumerate(CLASSES)}

# Class; ranges of half width, height and half depth; height above the floor; probability of the object.
BOXES = (
    ("bed", (0.7, 0.9), (0.4, 0.6), (0.9, 1.0), 0.0, 0.6),
    ("sofa", (0.8, 1.1), (0.7, 0.9), (0.4, 0.5), 0.0, 0.6),
    ("furniture", (0.3, 0.6), (1.4, 2.0), (0.25, 0.4), 0.0, 0.8),
    ("table", (0.4, 0.7), (0.06, 0.10), (0.3, 0.5), 0.7, 0.8),
    ("chair", (0.2, 0.25), (0.4, 0.5), (0.2, 0.25), 0.0, 0.8),
    ("books", (0.12, 0.2), (0.1, 0.3), (0.1, 0.15), 0.0, 0.7),
)
CYLINDERS = (
    ("table", (0.25, 0.45), (0.5, 0.75), 0.7),
    ("objects", (0.1, 0.2), (0.5, 1.3), 0.7),
)  # radius, height, probability
SPHERES = (("objects", (0.15, 0.35), 0.8), ("objects", (0.08, 0.2), 0.8))  # radius, probability; on the floor
PATCHES = (("window", (0.4, 0.9), (0.4, 0.6)), ("painting", (0.25, 0.5), (0.2, 0.4)), ("tv", (0.4, 0.6), (0.25, 0.35)))
"""Rectangles on the walls: half width, half height."""

COLOURS = torch.tensor(
    [[0.55, 0.30, 0.30], [0.75, 0.65, 0.25], [0.90, 0.90, 0.88], [0.45, 0.30, 0.15], [0.50, 0.42, 0.33],
     [0.60, 0.42, 0.25], [0.25, 0.55, 0.35], [0.70, 0.35, 0.55], [0.28, 0.35, 0.60], [0.65, 0.50, 0.35],
     [0.08, 0.08, 0.10], [0.80, 0.76, 0.68], [0.70, 0.85, 0.95]]
)  # fmt: skip
"""Base colour of each class. Each object varies it slightly."""


@dataclass
class _Rays:
    """The nearest hit of each ray of a chunk so far.

    Args:
        origin: Position of the camera (N, 1, 1, 3).
        direction: Directions (N, H, W, 3), with z = 1 in the camera's axes: the distance along a ray is the depth.
        distance: Distances of the hits (N, H, W).
        normal: Normals at the hits (N, H, W, 3), in world coordinates.
        label: Classes (N, H, W).
        colour: Colours (N, H, W, 3).
    """

    origin: Tensor
    direction: Tensor
    distance: Tensor
    normal: Tensor
    label: Tensor
    colour: Tensor

    def add_hits(self, distance: Tensor, normal: Tensor, label: int, colour: Tensor, mask: Tensor) -> None:
        """Store new hits that are nearer than the present ones. `colour` is (N, 3), `mask` selects rays."""
        nearer = mask & (distance > 1e-3) & (distance < self.distance)
        self.distance = torch.where(nearer, distance, self.distance)
        self.normal = torch.where(nearer.unsqueeze(-1), normal, self.normal)
        self.label = torch.where(nearer, label, self.label)
        self.colour = torch.where(nearer.unsqueeze(-1), colour[:, None, None], self.colour)


class _Uniform:
    """Uniform numbers of a chunk of rooms, used column by column."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers, self.used = numbers, 0

    def __call__(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return one number per room, (N)."""
        column = self.numbers[:, self.used]
        self.used += 1
        return low + (high - low) * column

    def colour(self, label: int) -> Tensor:
        """Return a random variation of a class's colour per room, (N, 3)."""
        base = COLOURS[label].to(self.numbers.device)
        variation = torch.stack([self(-0.12, 0.12) for _ in range(3)], 1)
        return (base + variation).clamp(0.03, 0.97)


COLUMNS = 192  # more numbers than a room uses


def make_rooms(
    train: int, held_out: int, height: int, width: int, *, seed: int = 0, device: str | torch.device = "cpu"
) -> Images:
    """Make images of random rooms.

    Args:
        train: Number of training images, which come first.
        held_out: Number of held-out images.
        height: Height of the images.
        width: Width of the images.
        seed: Seed of the rooms.
        device: Device that casts the rays and stores the images.
    """
    total = train + held_out
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(total, COLUMNS, generator=generator).to(device)
    parts = [_cast(part, height, width, start * CHUNK) for start, part in enumerate(numbers.split(CHUNK))]
    rgb, label, depth, normals = (torch.cat(column) for column in zip(*parts, strict=True))
    order = torch.arange(total)
    return Images(rgb, label, depth, normals, order[:train], order[train:])


@torch.no_grad()
def _cast(numbers: Tensor, height: int, width: int, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cast a chunk of rooms: colours, labels, depth and normals."""
    uniform = _Uniform(numbers)
    room = torch.stack((uniform(3.5, 6.0), uniform(2.4, 3.0), uniform(3.5, 6.5)), 1)  # width, height, depth
    rays, rotation = _camera(uniform, room, height, width)
    _walls(uniform, rays, room)
    for name, wide, tall, deep, above, chance in BOXES:
        _box(uniform, rays, room, CLASS[name], wide, tall, deep, above, chance)
    for name, radius, tall, chance in CYLINDERS:
        _cylinder(uniform, rays, room, CLASS[name], radius, tall, chance)
    for name, radius, chance in SPHERES:
        _sphere(uniform, rays, room, CLASS[name], radius, chance)
    rgb = _shade(uniform, rays, room, first)
    normals = torch.einsum("nhwi,nij->nhwj", rays.normal, rotation)  # to camera coordinates
    depth = rays.distance.clamp(max=FARTHEST)
    return rgb, rays.label.to(torch.uint8), depth.half(), F.normalize(normals, dim=-1).half()


def _camera(uniform: _Uniform, room: Tensor, height: int, width: int) -> tuple[_Rays, Tensor]:
    """Return rays of a camera at eye height near the front wall, tilted slightly downwards, and the camera's axes."""
    device = room.device
    origin = torch.stack((uniform(0.3, 0.7) * room[:, 0], -uniform(1.2, 1.7), uniform(0.2, 0.5)), 1)
    yaw, pitch = uniform(-0.6, 0.6), uniform(0.0, 0.35)
    (cy, sy), (cp, sp) = ((angle.cos(), angle.sin()) for angle in (yaw, pitch))
    zero = torch.zeros_like(cy)
    # Columns: the camera's x, y and z axes in world coordinates.
    rotation = torch.stack(
        (
            torch.stack((cy, zero, -sy), 1),
            torch.stack((-sy * sp, cp, -cy * sp), 1),
            torch.stack((sy * cp, sp, cy * cp), 1),
        ),
        2,
    )
    camera = KINECT.scaled(width / 640)
    v, u = torch.meshgrid(
        (torch.arange(height, device=device) - (height - 1) / 2) / camera.fy,
        (torch.arange(width, device=device) - (width - 1) / 2) / camera.fx,
        indexing="ij",
    )
    ray = torch.stack((u, v, torch.ones_like(u)), -1)
    direction = torch.einsum("hwj,nij->nhwi", ray, rotation)
    shape = (len(room), height, width)
    empty = torch.full(shape, NO_HIT, device=device)
    void = torch.zeros((*shape, 3), device=device)
    label = torch.zeros(shape, dtype=torch.long, device=device)
    return _Rays(origin[:, None, None], direction, empty, void, label, void), rotation


def _walls(uniform: _Uniform, rays: _Rays, room: Tensor) -> None:
    """Add the walls, floor and ceiling. Each ray hits exactly one of the two planes of each axis."""
    everywhere = torch.ones_like(rays.label, dtype=torch.bool)
    colours = {label: uniform.colour(CLASS[label]) for label in ("wall", "floor", "ceiling")}
    for axis in range(3):
        along, start = rays.direction[..., axis], rays.origin[..., axis]
        size = room[:, axis, None, None]
        lower, upper = (-size, torch.zeros_like(size)) if axis == 1 else (torch.zeros_like(size), size)
        forward = along > 0
        safe = torch.where(along.abs() < 1e-9, 1e-9, along)
        distance = (torch.where(forward, upper, lower) - start) / safe
        normal = torch.zeros_like(rays.direction)
        normal[..., axis] = torch.where(forward, -1.0, 1.0)
        for name, mask in (("floor", forward), ("ceiling", ~forward)) if axis == 1 else (("wall", everywhere),):
            rays.add_hits(distance, normal, CLASS[name], colours[name], mask)
    _patches(uniform, rays, room)


def _patches(uniform: _Uniform, rays: _Rays, room: Tensor) -> None:
    """Repaint rectangles of the far, left and right wall: window, painting and screen."""
    point = rays.origin + rays.distance.unsqueeze(-1) * rays.direction
    for side, (name, wide, tall) in enumerate(PATCHES):
        across, facing = (0, 2) if side == 0 else (2, 0)
        length = room[:, across]
        half, high = uniform(*wide), uniform(*tall)
        middle, level = uniform(0.3, 0.7) * length, -uniform(1.3, 1.7)
        colour, wall = uniform.colour(CLASS[name]), rays.label == CLASS["wall"]
        # The far wall faces −z, the left one +x, the right one −x.
        towards = rays.normal[..., facing] * (1.0 if side == 1 else -1.0) > 0.5
        inside = (point[..., across] - middle[:, None, None]).abs() < half[:, None, None]
        inside &= (point[..., 1] - level[:, None, None]).abs() < high[:, None, None]
        here = wall & towards & inside
        rays.label = torch.where(here, CLASS[name], rays.label)
        rays.colour = torch.where(here.unsqueeze(-1), colour[:, None, None], rays.colour)


def _place(uniform: _Uniform, room: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """Return a position on the floor, away from the walls and the camera."""
    x = margin + uniform() * (room[:, 0] - 2 * margin).clamp_min(0)
    start = 1.6 + margin
    return x, start + uniform() * (room[:, 2] - margin - start).clamp_min(0)


def _box(
    uniform: _Uniform, rays: _Rays, room: Tensor, label: int, wide: tuple[float, float], tall: tuple[float, float],
    deep: tuple[float, float], above: float, chance: float,
) -> None:  # fmt: skip
    """Add a box that is rotated about the vertical axis."""
    exists = uniform() < chance
    half_x, high, half_z = uniform(*wide), uniform(*tall), uniform(*deep)
    x, z = _place(uniform, room, torch.maximum(half_x, half_z) * 1.2)
    angle, colour = uniform(0, math.pi), uniform.colour(label)
    c, s = (value[:, None, None] for value in (angle.cos(), angle.sin()))
    centre = torch.stack((x, -above - high / 2, z), 1)[:, None, None]
    half = torch.stack((half_x, high / 2, half_z), 1)[:, None, None]

    def to_box_axes(vector: Tensor) -> Tensor:
        return torch.stack(
            (c * vector[..., 0] + s * vector[..., 2], vector[..., 1].expand_as(c * vector[..., 0]),
             c * vector[..., 2] - s * vector[..., 0]), -1
        )  # fmt: skip

    start, along = to_box_axes(rays.origin - centre), to_box_axes(rays.direction)
    along = torch.where(along.abs() < 1e-9, 1e-9, along)
    enter, leave = (-along.sign() * half - start) / along, (along.sign() * half - start) / along
    distance, axis = enter.max(-1)
    normal = F.one_hot(axis, 3) * -along.sign()
    world_normal = torch.stack(
        (c * normal[..., 0] - s * normal[..., 2], normal[..., 1], c * normal[..., 2] + s * normal[..., 0]), -1
    )
    rays.add_hits(distance, world_normal, label, colour, (distance < leave.amin(-1)) & exists[:, None, None])


def _cylinder(
    uniform: _Uniform, rays: _Rays, room: Tensor, label: int, size: tuple[float, float], tall: tuple[float, float],
    chance: float,
) -> None:  # fmt: skip
    """Add an upright cylinder on the floor: its side and its top."""
    exists = (uniform() < chance)[:, None, None]
    radius, high = uniform(*size), uniform(*tall)
    x, z = _place(uniform, room, radius * 1.1)
    colour = uniform.colour(label)
    r, top = radius[:, None, None], -high[:, None, None]
    ox, oz = rays.origin[..., 0] - x[:, None, None], rays.origin[..., 2] - z[:, None, None]
    dx, dy, dz = rays.direction.unbind(-1)
    a, b = (dx * dx + dz * dz).clamp_min(1e-12), ox * dx + oz * dz
    discriminant = b * b - a * (ox * ox + oz * oz - r * r)
    distance = (-b - discriminant.clamp_min(0).sqrt()) / a
    level = rays.origin[..., 1] + distance * dy
    normal = torch.stack(((ox + distance * dx) / r, torch.zeros_like(dx), (oz + distance * dz) / r), -1)
    rays.add_hits(distance, normal, label, colour, (discriminant > 0) & (level > top) & (level < 0) & exists)
    lid = (top - rays.origin[..., 1]) / torch.where(dy.abs() < 1e-9, 1e-9, dy)
    inside = (ox + lid * dx).square() + (oz + lid * dz).square() < r * r
    up = torch.zeros_like(normal)
    up[..., 1] = -1.0
    rays.add_hits(lid, up, label, colour, inside & (dy > 0) & exists)


def _sphere(uniform: _Uniform, rays: _Rays, room: Tensor, label: int, size: tuple[float, float], chance: float) -> None:
    """Add a sphere on the floor."""
    exists = (uniform() < chance)[:, None, None]
    radius = uniform(*size)
    x, z = _place(uniform, room, radius)
    colour = uniform.colour(label)
    start = rays.origin - torch.stack((x, -radius, z), 1)[:, None, None]
    r = radius[:, None, None]
    a, b = rays.direction.square().sum(-1), (start * rays.direction).sum(-1)
    discriminant = b * b - a * (start.square().sum(-1) - r * r)
    distance = (-b - discriminant.clamp_min(0).sqrt()) / a
    normal = (start + distance.unsqueeze(-1) * rays.direction) / r.unsqueeze(-1)
    rays.add_hits(distance, normal, label, colour, (discriminant > 0) & exists)


def _shade(uniform: _Uniform, rays: _Rays, room: Tensor, first: int) -> Tensor:
    """Return colours with a lamp under the ceiling, ambient light, a wave texture per class, and noise."""
    point = rays.origin + rays.distance.unsqueeze(-1) * rays.direction
    lamp = torch.stack((uniform(0.3, 0.7) * room[:, 0], 0.3 - room[:, 1], uniform(0.3, 0.7) * room[:, 2]), 1)
    to_lamp = lamp[:, None, None] - point
    away = to_lamp.norm(dim=-1)
    facing = (F.normalize(to_lamp, dim=-1) * rays.normal).sum(-1).clamp_min(0)
    power, ambient = uniform(1.2, 2.0)[:, None, None], uniform(0.3, 0.5)[:, None, None]
    light = ambient + power * facing / (1 + 0.25 * away.square())
    frequency = 4.0 + 3.0 * (rays.label % 5)
    wave = torch.sin(frequency * point[..., 0]) * torch.sin(frequency * point[..., 1] + frequency * point[..., 2])
    height, width = rays.label.shape[1:]
    number = torch.arange(first, first + len(rays.label), device=point.device)[:, None, None]
    pixel = torch.arange(height * width, device=point.device).view(height, width)
    noise = ((pixel * 2_654_435_761 + number * 40_503 + 12_345) % 65_521) / 65_521 - 0.5
    shade: Tensor = rays.colour * (light * (1 + 0.15 * wave)).unsqueeze(-1) + 0.04 * noise.unsqueeze(-1)
    return (shade.clamp(0, 1) * 255).round().to(torch.uint8)
