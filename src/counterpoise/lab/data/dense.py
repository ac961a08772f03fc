"""The data sets of dense prediction by name, on the device that trains on them."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from . import normals, nyuv2
from .arff import DataError
from .cache import cached
from .images import Images
from .locations import VARIABLE, data_folder
from .nyuv2_sources import read_folder, read_mat
from .subset import half
from .synthetic_rooms import scenes

DENSE = ("nyuv2", "scenes")

SCENES = {"train": 795, "held_out": 654, "height": 288, "width": 384}
"""As many as NYUv2 has, of its size."""


def load_images(name: str, options: dict[str, object], device: str) -> Images:
    """The images of a run; `subset="half"` trains on the fixed half. Options that are not about images do not count."""
    if name == "scenes":
        sizes = {key: int(str(options.get(key, default))) for key, default in SCENES.items()}
        images = _scenes(device, tuple(sizes.items()))
    elif name == "nyuv2":
        images = _nyuv2(device, data_folder())
    else:
        raise ValueError(f"unknown data {name!r}, expected one of {', '.join(DENSE)}")
    subset = options.get("subset", "full")
    if subset == "half":
        return replace(images, train=half(images, round(len(images.train) * nyuv2_share())))
    if subset != "full":
        raise ValueError(f"subset is {subset!r}, expected 'full' or 'half'")
    return images


def nyuv2_share() -> float:
    """398 of 795: of fewer images, as large a share."""
    return 398 / 795


@lru_cache(maxsize=1)
def _scenes(device: str, sizes: tuple[tuple[str, int], ...]) -> Images:
    return scenes(**dict(sizes), device=device)


@lru_cache(maxsize=1)
def _nyuv2(device: str, folder: Path | None) -> Images:
    if folder is None:
        raise DataError(f"NYUv2 is not here: name the data folder by {VARIABLE}, or use --data scenes")
    at = folder / "nyuv2"
    readers: dict[Path, Callable[[Path], Images]] = {
        at / nyuv2.FILE: lambda path: nyuv2.read_zip(path, device=device),
        at / "nyu_depth_v2_labeled.mat": lambda path: read_mat(path, device=device),
        at / "train": lambda path: read_folder(path.parent, device=device),
    }
    for path, read in readers.items():
        if path.exists():
            # A GPU decodes and derives as fast as a disk reads: only the slow way is kept.
            return cached(_cache_name(path), lambda: read(path), keep=device == "cpu").to(device)  # noqa: B023
    raise DataError(
        f"NYUv2 is not in {at}: expected {nyuv2.FILE}, nyu_depth_v2_labeled.mat, or the folders train and val"
    )


def _cache_name(path: Path) -> str:
    """Named after the file and what is derived from it: a changed file is another one."""
    about = path.stat()
    text = f"{path.resolve()} {about.st_size} {about.st_mtime_ns} {normals.VERSION}"
    return f"nyuv2-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
