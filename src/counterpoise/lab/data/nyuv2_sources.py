"""Read the two common forms of NYUv2 and pack them into the compact zip file.

These are the official `nyu_depth_v2_labeled.mat` (HDF5, next to `splits.mat` and the class maps 894 → 40 → 13), and the
preprocessed folder `train|val/{image,label,depth,normal}/N.npy` at 288 × 384, with label −1 for unlabelled pixels.
"""

import io
import lzma
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..._files import atomic_path
from ..errors import DataError
from .images import CLASSES, FARTHEST, IGNORED, Images
from .nyuv2 import LEVELS, SIZE, nyuv2_normals

Array = NDArray[Any]
RAW_CLASSES, FORTY = 894, 40
SPLITS, MAP_40, MAP_13 = "splits.mat", "classMapping40.mat", "class13Mapping.mat"


def read_mat(path: Path, *, device: str = "cpu") -> Images:
    """Read the official file, next to `splits.mat`, `classMapping40.mat` and `class13Mapping.mat`."""
    try:
        import h5py
    except ModuleNotFoundError as missing:
        raise DataError(f"{path}: reading it needs h5py: pip install 'counterpoise[lab]'") from missing
    try:
        with h5py.File(path) as file:
            return _images(file, path, device)
    except OSError as error:
        raise DataError(f"{path}: expected an HDF5 file, found {error}") from error


def _images(file: Any, path: Path, device: str) -> Images:
    found = {name: _member(file, path, name) for name in ("images", "depths", "labels")}
    count = len(found["images"])
    for name, expected in (("images", (count, 3)), ("depths", (count,)), ("labels", (count,))):
        if found[name].shape[: len(expected)] != expected or found[name].ndim != len(expected) + 2:
            raise DataError(f"{path}: {name} has shape {found[name].shape}, expected {(*expected, 'width', 'height')}")
    thirteen = _class_map(path.parent)
    rgb, label, depth = [], [], []
    for number in range(count):  # one at a time, because the file has 3 GB; MATLAB reverses the axes
        rgb.append(_resize(torch.from_numpy(found["images"][number]).mT.float(), "bilinear").round().byte())
        depth.append(_resize(torch.from_numpy(found["depths"][number]).T.float()[None], "nearest-exact")[0])
        raw = found["labels"][number].T.astype(np.int64)
        if raw.max() >= len(thirteen):
            raise DataError(f"{path}: labels has class {raw.max()} in image {number}, expected at most {RAW_CLASSES}")
        label.append(_resize(torch.from_numpy(thirteen[raw]).float()[None], "nearest-exact")[0].byte())
    split = _splits(path.parent / SPLITS, count)
    metres = torch.stack(depth).clamp(0, FARTHEST).half().to(device)
    pictures = torch.stack(rgb).permute(0, 2, 3, 1).contiguous().to(device)
    return Images(pictures, torch.stack(label).to(device) - 1, metres, nyuv2_normals(metres), *split)


def read_folder(path: Path, *, device: str = "cpu") -> Images:
    """Read the preprocessed folder, including its normals."""
    parts = {part: list(_numbers(path / part)) for part in ("train", "val")}
    planes: dict[str, list[Array]] = {name: [] for name in ("image", "label", "depth", "normal")}
    for part, numbers in parts.items():
        for number in numbers:
            for name, plane in planes.items():
                plane.append(_array(path / part / name / f"{number}.npy", 3 if name in ("image", "normal") else 1))
    pictures = [p * 255 if p.dtype.kind == "f" and p.max(initial=0) <= 1 else p for p in planes["image"]]
    rgb = torch.from_numpy(np.stack([p.round().astype(np.uint8) for p in pictures]))
    label = torch.from_numpy(np.stack(planes["label"])[..., 0].astype(np.int64))
    label = torch.where((label >= 0) & (label < len(CLASSES)), label, IGNORED).to(torch.uint8)
    depth = torch.from_numpy(np.stack(planes["depth"])[..., 0]).float().clamp(0, FARTHEST).half()
    normals = F.normalize(torch.from_numpy(np.stack(planes["normal"])).float(), dim=-1).half()
    train, total = len(parts["train"]), len(label)
    order = torch.arange(total)
    return Images(rgb, label, depth, normals, order[:train], order[train:]).to(device)


def write_zip(images: Images, path: Path, *, quality: int = 90) -> None:
    """Pack images into the compact zip file. Normals are not stored, but computed when it is read."""
    if images.size != SIZE:
        raise DataError(f"{path}: images are {images.size[0]} × {images.size[1]}, expected {SIZE[0]} × {SIZE[1]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        _pack(images, temporary, quality)


def _pack(images: Images, path: Path, quality: int) -> None:
    from PIL import Image

    depth = images.depth.float().cpu()
    largest = depth.flatten(1).amax(1).clamp_min(1e-3)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, picture in enumerate(images.rgb.cpu().numpy()):
            level = (depth[number] / largest[number] * LEVELS).floor().clamp(0, LEVELS).byte().numpy()
            for folder, pixels, options in (
                ("rgb", picture, {"quality": quality}),
                ("depth8", np.repeat(level[..., None], 3, 2), {"lossless": True}),
            ):
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "WEBP", method=4, **options)
                archive.writestr(f"{folder}/{number:04d}.webp", buffer.getvalue())
        labels, buffer = io.BytesIO(), io.BytesIO()
        np.save(labels, (images.label.cpu() + 1).numpy())  # uint8 arithmetic: IGNORED becomes 0
        archive.writestr("label13.npy.xz", lzma.compress(labels.getvalue()))
        bounds = largest.double().numpy()[:, None].repeat(2, 1)
        np.savez(buffer, train=images.train.numpy(), test=images.held_out.numpy(), depth_max_lo_hi=bounds)
        archive.writestr("meta.npz", buffer.getvalue())


def read_source(path: Path) -> Images:
    """Read either form of NYUv2.

    Args:
        path: The official file, or a folder with it or with `train` and `val`.
    """
    if path.is_dir():
        mat = path / "nyu_depth_v2_labeled.mat"
        return read_mat(mat) if mat.exists() else read_folder(path)
    if path.exists():
        return read_mat(path)
    raise DataError(f"{path}: expected nyu_depth_v2_labeled.mat or a folder with train and val, found nothing")


def _member(file: Any, path: Path, name: str) -> Any:
    if name not in file:
        raise DataError(f"{path}: has no {name}, expected images, depths and labels; found {', '.join(file)}")
    return file[name]


def _matlab(path: Path, name: str) -> Any:
    from scipy.io import loadmat

    try:
        content = loadmat(path)
    except Exception as error:  # SciPy raises different errors
        raise DataError(f"{path}: expected a MATLAB file with {name}, found {type(error).__name__}: {error}") from error
    if name not in content:
        names = ", ".join(key for key in content if not key.startswith("__"))
        raise DataError(f"{path}: has no {name}; found {names or 'nothing'}")
    return content[name]


def _splits(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of the training and the test images. MATLAB counts from 1."""
    train, test = (
        torch.from_numpy(_matlab(path, key).astype(np.int64).ravel()) - 1 for key in ("trainNdxs", "testNdxs")
    )
    if sorted((*train.tolist(), *test.tolist())) != list(range(count)):
        raise DataError(f"{path}: splits {len(train)} + {len(test)} images, expected each of {count} once")
    return train, test


def _class_map(folder: Path) -> Array:
    """Return the class 1–13 of each of the 894 raw classes, or 0 for none."""
    forty = _matlab(folder / MAP_40, "mapClass").astype(np.int64).ravel()
    thirteen = _matlab(folder / MAP_13, "classMapping13")
    while thirteen.dtype.names or thirteen.dtype == object:  # the first field of a struct
        thirteen = thirteen[thirteen.dtype.names[0]] if thirteen.dtype.names else thirteen.ravel()[0]
    thirteen = thirteen.astype(np.int64).ravel()
    for file, found, size, top in ((MAP_40, forty, RAW_CLASSES, FORTY), (MAP_13, thirteen, FORTY, len(CLASSES))):
        if len(found) != size or found.min() < 0 or found.max() > top:
            raise DataError(f"{folder / file}: maps {len(found)} classes to at most {found.max()}, "
                            f"expected {size} to at most {top}")  # fmt: skip
    return np.concatenate(([0], np.concatenate(([0], thirteen))[forty]))


def _resize(plane: Tensor, mode: str) -> Tensor:
    """Resize (C, H, W) to 288 × 384."""
    smooth = {"antialias": True, "align_corners": False} if mode == "bilinear" else {}
    return F.interpolate(plane[None], SIZE, mode=mode, **smooth)[0]


def _numbers(folder: Path) -> Iterable[int]:
    """Return the numbers of the images of a part, which must be 0, 1, … without a gap."""
    numbers = sorted(int(file.stem) for file in (folder / "image").glob("*.npy") if file.stem.isdecimal())
    if not numbers or numbers != list(range(len(numbers))):
        found = f"{len(numbers)} up to {numbers[-1]}" if numbers else "none"
        raise DataError(f"{folder / 'image'}: expected 0.npy, 1.npy, … without a gap, found {found}")
    return numbers


def _array(path: Path, channels: int) -> Array:
    """Return an array (H, W, channels) from a file with any channel layout."""
    try:
        found: Array = np.load(path)
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    for shape in _layouts(found, channels):
        if shape.shape[:2] == SIZE:
            return shape
    raise DataError(f"{path}: has shape {found.shape}, expected {SIZE} with {channels} channel(s)")


def _layouts(found: Array, channels: int) -> Iterator[Array]:
    if found.ndim == 2 and channels == 1:
        yield found[..., None]
    if found.ndim == 3 and found.shape[-1] == channels:
        yield found
    if found.ndim == 3 and found.shape[0] == channels:
        yield found.transpose(1, 2, 0)
