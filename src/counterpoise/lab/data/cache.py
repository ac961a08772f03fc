"""Cache of decoded images on disk: one folder of arrays per data set, written atomically."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..._files import atomic_path
from .arff import CACHE_VARIABLE, cache_folder
from .images import PLANES, Images


def load_cached(name: str, make: Callable[[], Images], *, keep: bool = True) -> Images:
    """Return cached images, or make and cache them.

    A cache that cannot be read or written is ignored. Decoded images are large: set COUNTERPOISE_CACHE to an empty
    string to disable the cache.

    Args:
        name: Name of the cache entry.
        make: Makes the images.
        keep: Whether to cache new images.
    """
    if os.environ.get(CACHE_VARIABLE) == "":
        return make()
    folder = cache_folder() / name
    try:
        return _load(folder)
    except Exception:  # missing or damaged
        images = make()
    if not keep:
        return images
    try:
        _save(images, folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
    return images


def _load(folder: Path) -> Images:
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in (*PLANES, "train", "held_out")}
    return Images(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _save(images: Images, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder) as temporary:  # raises OSError if another process has written the folder meanwhile
        temporary.mkdir()
        for name in (*PLANES, "train", "held_out"):
            np.save(temporary / f"{name}.npy", getattr(images, name).cpu().numpy())
