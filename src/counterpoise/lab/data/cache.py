"""Decoded images kept on disk: a folder of arrays beside nothing else, written whole or not at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..._files import atomic_path
from .arff import CACHE_VARIABLE, cache_folder
from .images import PLANES, Images


def cached(name: str, make: Callable[[], Images], *, keep: bool = True) -> Images:
    """What `make` returns, from the cache if it is there; a cache that cannot be read or written is done without.

    Decoded images are large: an empty $COUNTERPOISE_CACHE says not to keep them.
    """
    if os.environ.get(CACHE_VARIABLE) == "":
        return make()
    folder = cache_folder() / name
    try:
        return _load(folder)
    except Exception:  # not there, or damaged
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
