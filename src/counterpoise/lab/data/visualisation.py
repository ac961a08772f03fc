"""Pictures of dense targets and predictions for a few held-out images, with fixed colours."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from .augment import Batch
from .images import FARTHEST, IGNORED, Images

EXAMPLES = 4
MAX_HEIGHT = 144  # pixels
TRUTH, PREDICTED = "truth.webp", "predicted.webp"
COLUMNS = {TRUTH: ("image", "seg", "depth", "normals"), PREDICTED: ("seg", "depth", "normals")}
"""Columns of each file. Its rows are the images."""

CLASS_COLOURS = (
    "#4e79a7", "#b07aa1", "#d9d9d9", "#e15759", "#9c755f", "#f28e2b", "#edc948", "#ff9da7", "#76b7b2", "#59a14f",
    "#2f2f2f", "#c7b299", "#a0cbe8",
)  # fmt: skip
"""One colour per class, in the order of the labels."""
UNKNOWN = "#808080"
NEAR_TO_FAR = ("#fde725", "#90d743", "#35b779", "#21918c", "#31688e", "#443983", "#440154")

Pixels = NDArray[np.uint8]


def select_examples(images: Images) -> Tensor:
    """Return the numbers of evenly spaced held-out images."""
    count = len(images.held_out)
    positions = sorted({(2 * i + 1) * count // (2 * EXAMPLES) for i in range(EXAMPLES)}) if count else []
    return images.held_out[positions]


def render_examples(batch: Batch, out: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return two WebP files: images with their targets, and the predictions of a network. Empty without Pillow."""
    step = -(-batch.rgb.shape[-2] // MAX_HEIGHT)
    rgb = F.avg_pool2d(batch.rgb.float(), step).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    height, width = rgb.shape[1:3]

    def downsample(plane: Tensor) -> NDArray[np.float32]:
        small: NDArray[np.float32] = plane[..., ::step, ::step][..., :height, :width].detach().float().cpu().numpy()
        return small

    depth, normals = downsample(batch.depth)[:, 0], downsample(F.normalize(batch.normals, dim=1))
    ranges = [_range(image) for image in depth]
    predicted = (
        downsample(out["seg"].argmax(1)),
        downsample(out["depth"])[:, 0],
        downsample(F.normalize(out["normals"].float(), dim=1)),
    )
    truth = _colour(downsample(batch.label), depth, normals, ranges)
    unknown = _rgb([UNKNOWN])[0]
    truth[1][depth <= 0] = unknown
    truth[2][np.abs(normals).sum(1) == 0] = unknown
    sheets = {TRUTH: [rgb, *truth], PREDICTED: _colour(*predicted, ranges)}
    return {name: content for name, columns in sheets.items() if (content := _sheet(columns))}


def _colour(
    label: NDArray[np.float32],
    depth: NDArray[np.float32],
    normals: NDArray[np.float32],
    ranges: Sequence[tuple[float, float]],
) -> list[Pixels]:
    """Return colours (N, H, W, 3) of labels, depth and normals. Depth is scaled to the range of each image's target."""
    palette = np.full((IGNORED + 1, 3), _rgb([UNKNOWN])[0])
    palette[: len(CLASS_COLOURS)] = _rgb(CLASS_COLOURS)
    ramp, stops = _rgb(NEAR_TO_FAR), np.linspace(0, 1, len(NEAR_TO_FAR))
    shares = [np.clip((d - near) / (far - near), 0, 1) for d, (near, far) in zip(depth, ranges, strict=True)]
    depth_colours = np.stack([np.interp(np.stack(shares), stops, ramp[:, c]) for c in range(3)], -1)
    facing = normals.transpose(0, 2, 3, 1) * np.array([1, -1, -1], np.float32)  # x right, y up, z towards the viewer
    return [
        palette[label.astype(np.uint8)],
        depth_colours.round().astype(np.uint8),
        ((facing + 1) * 127.5).astype(np.uint8),
    ]


def _range(depth: NDArray[np.float32]) -> tuple[float, float]:
    """Return the 2 % and 98 % quantiles of the known depth."""
    known = depth[depth > 0]
    near, far = (float(x) for x in np.quantile(known, (0.02, 0.98))) if known.size else (0.0, FARTHEST)
    return (near, far) if far > near else (0.0, FARTHEST)


def _rgb(colours: Sequence[str]) -> Pixels:
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], np.uint8)


def _sheet(columns: Sequence[Pixels]) -> bytes:
    try:
        from PIL import Image
    except ModuleNotFoundError:  # Pillow belongs to an extra, and scores do not need it
        return b""
    whole = np.concatenate([np.concatenate(list(column), 0) for column in columns], 1)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(whole)).save(buffer, "WEBP", quality=80, method=6)
    return buffer.getvalue()
