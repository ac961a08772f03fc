"""NYU Depth v2 in one zip file: 1,449 labelled images at 288 × 384 in 57 MB.

`rgb/NNNN.webp` is the image. `depth8/NNNN.webp` (lossless) has a byte b for each pixel: if m is the largest depth of
the image, the depth is min((b + ½) m/255, m) metres. `label13.npy.xz` contains the labels: 0 for none, 1–13 for the
classes. `meta.npz` contains the numbers of the training and the held-out images, and two bounds on each m, of which
the mean is used. Normals are computed from depth.
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

from ..errors import DataError
from .images import CLASSES, FARTHEST, Images
from .normals import KINECT, normals

SIZE = (288, 384)
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
    """Read the zip file.

    Args:
        path: The zip file.
        only: Numbers of the images to read. The split then contains their positions in this list. Default: all.
        device: Device of the result, which also computes the normals.
        images: Number of images in the file.
        workers: Number of threads that decode images.

    Raises:
        DataError: If the file is damaged or incomplete.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected the zip file of NYUv2, found {error}") from error
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
                for _ in pool.map(
                    partial(_picture, archive, path, folder, channel, into), *_positions_and_numbers(numbers)
                ):
                    pass
            labels = label.result()
    largest = torch.tensor(meta["depth_max_lo_hi"][numbers].mean(1), dtype=torch.float32, device=device)
    depth = decode_depth(torch.from_numpy(level).to(device), largest)
    derived = nyuv2_normals(depth, largest / LEVELS)
    split = {name: _positions(meta[name], numbers) for name in ("train", "test")}
    return Images(torch.from_numpy(rgb).to(device), labels.to(device), depth, derived, split["train"], split["test"])


def decode_depth(level: Tensor, largest: Tensor) -> Tensor:
    """Convert levels (N, H, W) to metres in half precision."""
    m = largest.view(-1, 1, 1)
    pieces = [torch.minimum((b.float() + 0.5) * (n / LEVELS), n).clamp(max=FARTHEST).half()
              for b, n in zip(level.split(64), m.split(64), strict=True)]  # fmt: skip
    return torch.cat(pieces) if pieces else level.half()


def nyuv2_normals(depth: Tensor, step: Tensor | None = None) -> Tensor:
    """Compute normals for the camera of NYUv2 in half precision, in chunks to limit memory."""
    camera = KINECT.scaled(depth.shape[1] / 480)
    result = torch.empty((*depth.shape, 3), dtype=torch.float16, device=depth.device)
    for start in range(0, len(depth), 64):
        part = slice(start, start + 64)
        result[part] = normals(depth[part], camera, None if step is None else step[part])
    return result


def _positions_and_numbers(numbers: Sequence[int]) -> tuple[range, Sequence[int]]:
    return range(len(numbers)), numbers


def _check_members(archive: zipfile.ZipFile, path: Path, numbers: Sequence[int]) -> None:
    present = set(archive.namelist())
    expected = ["meta.npz", "label13.npy.xz", *(f"{f}/{n:04d}.webp" for n in numbers for f in ("rgb", "depth8"))]
    missing = [name for name in expected if name not in present]
    if missing:
        raise DataError(f"{path}: {len(missing)} of {len(expected)} members are missing, the first is {missing[0]}")


def _read(archive: zipfile.ZipFile, path: Path, name: str, decode: Callable[[bytes], Array]) -> Array:
    """Decode a member of the archive. Errors name it."""
    try:
        return decode(archive.read(name))
    except Exception as error:  # zipfile, zlib, lzma, numpy and Pillow raise different errors
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
    """Return labels: 0–12, and 255 for pixels without a class."""
    name = "label13.npy.xz"
    found = _read(archive, path, name, lambda content: np.load(io.BytesIO(lzma.decompress(content))))
    if found.shape != (images, *SIZE) or found.dtype != np.uint8:
        raise DataError(f"{path}: member {name} is {found.dtype} {found.shape}, expected uint8 {(images, *SIZE)}")
    if found.max() > len(CLASSES):
        raise DataError(f"{path}: member {name} has label {found.max()}, expected 0 to {len(CLASSES)}")
    labels = torch.from_numpy(found if len(numbers) == images else found[list(numbers)])
    return labels - 1  # uint8 arithmetic: 0, which means no class, becomes IGNORED


def _positions(split: Array, numbers: Sequence[int]) -> Tensor:
    """Return the positions of the images of a split among those that were read."""
    place = {number: position for position, number in enumerate(numbers)}
    return torch.tensor([place[number] for number in split.tolist() if number in place], dtype=torch.long)
