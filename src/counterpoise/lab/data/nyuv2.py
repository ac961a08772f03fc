"""NYU Depth v2 in one zip: 1,449 labelled images at 288 × 384, packed into 57 MB.

`rgb/NNNN.webp` is the image. `depth8/NNNN.webp` (lossless) holds a byte b for each pixel: with m the largest depth of
the image, depth is min((b + ½) m/255, m) metres. `label13.npy.xz` holds the labels, 0 for none and 1–13 for the
classes. `meta.npz` has the numbers of the images to train on and to hold out, and two bounds on each m, of which the
mean is taken. Normals are derived from depth.
"""

import io
import lzma
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arff import DataError
from .images import CLASSES, FARTHEST, Images
from .normals import KINECT, normals

SIZE = (288, 384)
SHRUNK = SIZE[0] / 480  # against the camera's own 480 × 640
IMAGES, TRAIN, HELD_OUT = 1449, 795, 654
LEVELS = 255
FILE = "nyuv2_288x384.zip"

Array = NDArray[Any]


def read_zip(
    path: Path,
    *,
    only: Sequence[int] | None = None,
    device: str = "cpu",
    images: int = IMAGES,
    workers: int | None = None,
) -> Images:
    """Reads the zip, or `only` some images of it (then the split holds those among them, as positions).

    Pictures are decoded in threads; normals are worked out on `device`, where everything ends.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected the zip of NYUv2, found {error}") from error
    with archive:
        numbers = list(range(images)) if only is None else list(only)
        _check_members(archive, path, numbers)
        meta = _meta(archive, path, images)
        with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 16)) as pool:
            label = pool.submit(_labels, archive, path, images, numbers)
            rgb = np.empty((len(numbers), *SIZE, 3), np.uint8)
            level = np.empty((len(numbers), *SIZE), np.uint8)
            work = [(rgb, "rgb", slice(None)), (level, "depth8", 0)]
            for into, folder, channel in work:
                for _ in pool.map(partial(_picture, archive, path, folder, channel, into), *_places(numbers)):
                    pass
            labels = label.result()
    largest = torch.tensor(meta["depth_max_lo_hi"][numbers].mean(1), dtype=torch.float32, device=device)
    depth = decode_depth(torch.from_numpy(level).to(device), largest)
    derived = normals_of(depth, largest / LEVELS)
    split = {name: _positions(meta[name], numbers) for name in ("train", "test")}
    return Images(torch.from_numpy(rgb).to(device), labels.to(device), depth, derived, split["train"], split["test"])


def decode_depth(level: Tensor, largest: Tensor) -> Tensor:
    """Metres from levels (N, H, W); in half precision, as they are kept."""
    m = largest.view(-1, 1, 1)
    pieces = [torch.minimum((b.float() + 0.5) * (n / LEVELS), n).clamp(max=FARTHEST).half()
              for b, n in zip(level.split(64), m.split(64), strict=True)]  # fmt: skip
    return torch.cat(pieces) if pieces else level.half()


def normals_of(depth: Tensor, step: Tensor | None = None) -> Tensor:
    """Normals of NYUv2's camera in half precision, piece by piece: they are the largest part of the data."""
    camera = KINECT.scaled(depth.shape[1] / 480)
    found = torch.empty((*depth.shape, 3), dtype=torch.float16, device=depth.device)
    for start in range(0, len(depth), 64):
        part = slice(start, start + 64)
        found[part] = normals(depth[part], camera, None if step is None else step[part])
    return found


def _places(numbers: Sequence[int]) -> tuple[range, Sequence[int]]:
    return range(len(numbers)), numbers


def _check_members(archive: zipfile.ZipFile, path: Path, numbers: Sequence[int]) -> None:
    there = set(archive.namelist())
    expected = ["meta.npz", "label13.npy.xz", *(f"{f}/{n:04d}.webp" for n in numbers for f in ("rgb", "depth8"))]
    missing = [name for name in expected if name not in there]
    if missing:
        raise DataError(f"{path}: {len(missing)} of {len(expected)} members are missing, the first is {missing[0]}")


def _read(archive: zipfile.ZipFile, path: Path, name: str, decode: Callable[[bytes], Array]) -> Array:
    """A member, decoded; whatever is wrong with it is told with its name."""
    try:
        return decode(archive.read(name))
    except Exception as error:  # zipfile, zlib, lzma, numpy and Pillow each have errors of their own
        raise DataError(f"{path}: member {name} cannot be read ({type(error).__name__}: {error})") from error


def _picture(
    archive: zipfile.ZipFile, path: Path, folder: str, channel: Any, into: Array, place: int, number: int
) -> None:
    name = f"{folder}/{number:04d}.webp"
    found = _read(archive, path, name, _decode_picture)
    if found.shape != (*SIZE, 3):
        raise DataError(f"{path}: member {name} has shape {found.shape}, expected {(*SIZE, 3)}")
    into[place] = found[..., channel]


def _decode_picture(content: bytes) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def _meta(archive: zipfile.ZipFile, path: Path, images: int) -> dict[str, Array]:
    name, found = "meta.npz", {}
    for key in ("train", "test", "depth_max_lo_hi"):
        found[key] = _read(archive, path, name, lambda content, key=key: np.load(io.BytesIO(content))[key])  # type: ignore[misc]
    both = np.concatenate((found["train"], found["test"]))
    if sorted(both.tolist()) != list(range(images)):
        raise DataError(f"{path}: member {name} splits {len(both)} images, expected each of {images} once")
    if images == IMAGES and (len(found["train"]), len(found["test"])) != (TRAIN, HELD_OUT):
        raise DataError(f"{path}: member {name} has {len(found['train'])} + {len(found['test'])} images, "
                        f"expected {TRAIN} + {HELD_OUT}")  # fmt: skip
    if found["depth_max_lo_hi"].shape != (images, 2) or not (found["depth_max_lo_hi"] > 0).all():
        raise DataError(f"{path}: member {name}: depth_max_lo_hi has shape {found['depth_max_lo_hi'].shape}, "
                        f"expected {(images, 2)}, all positive")  # fmt: skip
    return found


def _labels(archive: zipfile.ZipFile, path: Path, images: int, numbers: Sequence[int]) -> Tensor:
    """0–12, and 255 for what has no class."""
    name = "label13.npy.xz"
    found = _read(archive, path, name, lambda content: np.load(io.BytesIO(lzma.decompress(content))))
    if found.shape != (images, *SIZE) or found.dtype != np.uint8:
        raise DataError(f"{path}: member {name} is {found.dtype} {found.shape}, expected uint8 {(images, *SIZE)}")
    if found.max() > len(CLASSES):
        raise DataError(f"{path}: member {name} has label {found.max()}, expected 0 to {len(CLASSES)}")
    chosen = torch.from_numpy(found if len(numbers) == images else found[list(numbers)])
    return chosen - 1  # as bytes: 0, no class, becomes IGNORED


def _positions(chosen: Array, numbers: Sequence[int]) -> Tensor:
    """Where the chosen images stand among those that were read."""
    place = {number: position for position, number in enumerate(numbers)}
    return torch.tensor([place[number] for number in chosen.tolist() if number in place], dtype=torch.long)
