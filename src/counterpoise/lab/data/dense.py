"""Load the data sets of dense prediction by name, onto the device that trains on them."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..errors import DataError
from . import normals, nyuv2
from .cache import load_cached
from .images import Images
from .locations import VARIABLE, data_folder
from .nyuv2_sources import read_folder, read_mat
from .subset import half_subset
from .synthetic_rooms import make_rooms

DENSE = ("nyuv2", "scenes")

ROOM_SIZES = {"train": 795, "held_out": 654, "height": 288, "width": 384}
"""Defaults of the synthetic rooms: number and size of the images of NYUv2."""


def load_images(name: str, options: dict[str, object], device: str) -> Images:
    """Return the images of a run.

    Args:
        name: "nyuv2", or "scenes" for synthetic rooms.
        options: Options of the run. `subset="half"` trains on the half-size subset; sizes apply to synthetic rooms.
        device: Device of the images.

    Raises:
        DataError: If NYUv2 is not in the data folder.
    """
    if name == "scenes":
        sizes = {key: int(str(options.get(key, default))) for key, default in ROOM_SIZES.items()}
        images = _rooms(device, tuple(sizes.items()))
    elif name == "nyuv2":
        images = _nyuv2(device, data_folder())
    else:
        raise ValueError(f"unknown data set {name!r}: expected one of {', '.join(DENSE)}")
    subset = options.get("subset", "full")
    if subset == "half":
        return replace(images, train=half_subset(images, round(len(images.train) * half_share())))
    if subset != "full":
        raise ValueError(f"subset is {subset!r}, expected 'full' or 'half'")
    return images


def half_share() -> float:
    """Return the share of training images in the half-size subset: 398 of the 795 of NYUv2."""
    return 398 / 795


@lru_cache(maxsize=1)
def _rooms(device: str, sizes: tuple[tuple[str, int], ...]) -> Images:
    return make_rooms(**dict(sizes), device=device)


@lru_cache(maxsize=1)
def _nyuv2(device: str, folder: Path | None) -> Images:
    if folder is None:
        raise DataError(f"NYUv2 not found: set the data folder with {VARIABLE}, or use --data scenes")
    root = folder / "nyuv2"
    readers: dict[Path, Callable[[Path], Images]] = {
        root / nyuv2.FILE: lambda path: nyuv2.read_zip(path, device=device),
        root / "nyu_depth_v2_labeled.mat": lambda path: read_mat(path, device=device),
        root / "train": lambda path: read_folder(path.parent, device=device),
    }
    for path, read in readers.items():
        if path.exists():
            # A GPU decodes as fast as a disk reads, so only CPU results are cached.
            return load_cached(_cache_name(path), lambda: read(path), keep=device == "cpu").to(device)  # noqa: B023
    raise DataError(
        f"NYUv2 not found in {root}: expected {nyuv2.FILE}, nyu_depth_v2_labeled.mat, or the folders train and val"
    )


def _cache_name(path: Path) -> str:
    """Return a name that changes with the file and with the version of the derived normals."""
    status = path.stat()
    text = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {normals.VERSION}"
    return f"nyuv2-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
