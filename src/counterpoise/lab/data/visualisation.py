"""Dense targets and predictions as pictures: a few held-out images, small, in colours that are the same everywhere."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from .augment import Batch
from .images import FARTHEST, IGNORED, Images

SHOWN = 4
TALLEST = 144  # pixels
TRUTH, PREDICTED = "truth.webp", "predicted.webp"
COLUMNS = {TRUTH: ("image", "seg", "depth", "normals"), PREDICTED: ("seg", "depth", "normals")}
"""What stands in the columns of each file; its rows are the images."""

CLASS_COLOURS = (
    "#4e79a7", "#b07aa1", "#d9d9d9", "#e15759", "#9c755f", "#f28e2b", "#edc948", "#ff9da7", "#76b7b2", "#59a14f",
    "#2f2f2f", "#c7b299", "#a0cbe8",
)  # fmt: skip
"""One for each class, in the order of the labels."""
UNKNOWN = "#808080"
NEAR_TO_FAR = ("#fde725", "#90d743", "#35b779", "#21918c", "#31688e", "#443983", "#440154")

Pixels = NDArray[np.uint8]


def chosen(images: Images) -> Tensor:
    """The held-out images that are shown: always the same, spread evenly."""
    count = len(images.held_out)
    places = sorted({(2 * i + 1) * count // (2 * SHOWN) for i in range(SHOWN)}) if count else []
    return images.held_out[places]


def pictures(batch: Batch, out: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The two files: images with what is true of them, and what a network made of them. Empty without Pillow."""
    step = -(-batch.rgb.shape[-2] // TALLEST)
    rgb = F.avg_pool2d(batch.rgb.float(), step).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    height, width = rgb.shape[1:3]

    def small(plane: Tensor) -> NDArray[np.float32]:
        every: NDArray[np.float32] = plane[..., ::step, ::step][..., :height, :width].detach().float().cpu().numpy()
        return every

    depth, normals = small(batch.depth)[:, 0], small(F.normalize(batch.normals, dim=1))
    ranges = [_range(image) for image in depth]
    found = small(out["seg"].argmax(1)), small(out["depth"])[:, 0], small(F.normalize(out["normals"].float(), dim=1))
    truth = _colour(small(batch.label), depth, normals, ranges)
    unknown = _rgb([UNKNOWN])[0]
    truth[1][depth <= 0] = unknown
    truth[2][np.abs(normals).sum(1) == 0] = unknown
    sheets = {TRUTH: [rgb, *truth], PREDICTED: _colour(*found, ranges)}
    return {name: content for name, columns in sheets.items() if (content := _sheet(columns))}


def _colour(
    label: NDArray[np.float32],
    depth: NDArray[np.float32],
    normals: NDArray[np.float32],
    ranges: Sequence[tuple[float, float]],
) -> list[Pixels]:
    """(N, H, W, 3) each. Depth is coloured between the nearest and the farthest that is true of the image."""
    palette = np.full((IGNORED + 1, 3), _rgb([UNKNOWN])[0])
    palette[: len(CLASS_COLOURS)] = _rgb(CLASS_COLOURS)
    ramp, stops = _rgb(NEAR_TO_FAR), np.linspace(0, 1, len(NEAR_TO_FAR))
    shares = [np.clip((d - near) / (far - near), 0, 1) for d, (near, far) in zip(depth, ranges, strict=True)]
    deep = np.stack([np.interp(np.stack(shares), stops, ramp[:, c]) for c in range(3)], -1)
    facing = normals.transpose(0, 2, 3, 1) * np.array([1, -1, -1], np.float32)  # x right, y up, z towards the eye
    return [palette[label.astype(np.uint8)], deep.round().astype(np.uint8), ((facing + 1) * 127.5).astype(np.uint8)]


def _range(depth: NDArray[np.float32]) -> tuple[float, float]:
    known = depth[depth > 0]
    near, far = (float(x) for x in np.quantile(known, (0.02, 0.98))) if known.size else (0.0, FARTHEST)
    return (near, far) if far > near else (0.0, FARTHEST)


def _rgb(colours: Sequence[str]) -> Pixels:
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], np.uint8)


def _sheet(columns: Sequence[Pixels]) -> bytes:
    try:
        from PIL import Image
    except ModuleNotFoundError:  # an extra: numbers do not need it
        return b""
    whole = np.concatenate([np.concatenate(list(column), 0) for column in columns], 1)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(whole)).save(buffer, "WEBP", quality=85, method=6)
    return buffer.getvalue()
