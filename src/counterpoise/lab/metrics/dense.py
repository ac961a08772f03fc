"""Losses and metrics of dense prediction: segmentation, depth, surface normals.

Metrics are pooled over all valid pixels of a data set, not averaged over batches. Sums are accumulated on the device
and read once, at the end.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .task_types import at_least_float32

TASKS = ("seg", "depth", "normals")
NEAREST, FARTHEST = 1e-3, 10.0  # predicted depth is clamped to this range, in metres
ANGLE_THRESHOLDS = (11.25, 22.5, 30.0)  # degrees
BINS = 18_000  # of the histogram of angles, for a median with an error below 0.005°
IGNORED = 255

HIGHER_IS_BETTER = {
    "miou": True,
    "pixel_accuracy": True,
    "abs_rel": False,
    "rmse": False,
    "angle": False,
    "angle_median": False,
    "within_11": True,
    "within_22": True,
    "within_30": True,
    "total_loss": False,
}
"""All metrics, and whether higher values are better."""

PAPER_DELTA = ("miou", "abs_rel", "angle")
COMMON_DELTA = (
    "miou",
    "pixel_accuracy",
    "abs_rel",
    "rmse",
    "angle",
    "angle_median",
    "within_11",
    "within_22",
    "within_30",
)


def losses(out: Mapping[str, Tensor], label: Tensor, depth: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of the three tasks and their numbers of valid pixels, both (3,).

    The losses are the cross-entropy over labelled pixels, the absolute error over pixels with depth, and 1 − cosine
    over pixels with a normal. Without valid pixels, a loss is 0.
    """
    pixels = [mask.sum() for mask in valid_masks(label, depth, normals)]
    seg = F.cross_entropy(at_least_float32(out["seg"]), label, ignore_index=IGNORED, reduction="sum")
    depth_error = ((at_least_float32(out["depth"]) - depth).abs() * (depth > 0)).sum()
    cosine = F.cosine_similarity(at_least_float32(out["normals"]), normals, dim=1, eps=1e-8)
    normal_error = ((1 - cosine) * _has_normal(normals)).sum()
    sums = torch.stack((seg, depth_error, normal_error))
    count = torch.stack(pixels).to(sums.dtype)
    return sums / count.clamp_min(1), count


def valid_masks(label: Tensor, depth: Tensor, normals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the valid pixels of segmentation, depth and normals."""
    return label != IGNORED, depth > 0, _has_normal(normals)


def _has_normal(normals: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(normals, dim=1)
    return length > 1e-6


class DenseMetrics:
    """Accumulate the metrics of a data set on its device."""

    def __init__(self, classes: int, device: str | torch.device) -> None:
        self.classes = classes
        self.confusion = torch.zeros(classes * classes, device=device, dtype=torch.int64)
        self.angles = torch.zeros(BINS, device=device, dtype=torch.int64)
        # Sums of |d̂ − d|/d, (d̂ − d)², pixels with depth; angles, pixels with a normal; 3 losses × images, images.
        self.sums = torch.zeros(9, device=device, dtype=torch.float64)

    def reset(self) -> None:
        """Set all sums to 0, in place."""
        for sums in (self.confusion, self.angles, self.sums):
            sums.zero_()

    @torch.no_grad()
    def add(
        self, out: Mapping[str, Tensor], label: Tensor, depth: Tensor, normals: Tensor, images: Tensor | int
    ) -> None:
        """Add a batch.

        Args:
            out: the outputs of the network for each task.
            label: the classes, (N, H, W).
            depth: the depth in metres, (N, 1, H, W), 0 if unknown.
            normals: the unit normals, (N, 3, H, W), 0 if unknown.
            images: the number of images that count. The others are padding without valid pixels.
        """
        labelled, has_depth, has_normal = valid_masks(label, depth, normals)
        pairs = label * self.classes + out["seg"].argmax(1)
        self.confusion.scatter_add_(0, torch.where(labelled, pairs, 0).flatten(), labelled.flatten().long())
        predicted = at_least_float32(out["depth"]).clamp(NEAREST, FARTHEST)
        error = (predicted - depth).abs() * has_depth
        cosine = F.cosine_similarity(at_least_float32(out["normals"]), normals, dim=1, eps=1e-8).clamp(-1, 1)
        angle = torch.rad2deg(torch.acos(cosine))
        bins = (angle * (BINS / 180)).long().clamp(0, BINS - 1)
        self.angles.scatter_add_(0, bins.flatten(), has_normal.flatten().long())
        each = losses(out, label, depth, normals)[0].double() * images
        relative = error / torch.where(has_depth, depth, 1.0)
        depth_sums = (relative.sum(), error.square().sum(), has_depth.sum())
        angle_sums = ((angle * has_normal).sum(), has_normal.sum())
        # Copying a number to the device would synchronise; filling a tensor does not.
        count = images.double().view(1) if isinstance(images, Tensor) else torch.full_like(self.sums[:1], images)
        self.sums += torch.cat((torch.stack([part.double() for part in (*depth_sums, *angle_sums)]), each, count))

    def read(self) -> dict[str, float]:
        """Return all metrics, with NaN for tasks without valid pixels. Synchronises with the device once."""
        values = torch.cat((self.confusion.double(), self.angles.double(), self.sums)).cpu()
        confusion = values[: len(self.confusion)].view(self.classes, self.classes)
        angles, sums = values[len(self.confusion) : -9], values[-9:].tolist()
        relative, squared, depth_pixels, angle, normal_pixels, *task_losses, images = sums
        metrics = {
            **segmentation_scores(confusion),
            "abs_rel": _ratio(relative, depth_pixels),
            "rmse": math.sqrt(_ratio(squared, depth_pixels)) if depth_pixels else math.nan,
            "angle": _ratio(angle, normal_pixels),
            "angle_median": _histogram_median(angles),
        }
        for degrees in ANGLE_THRESHOLDS:
            below = float(angles[: round(degrees * BINS / 180)].sum())
            metrics[f"within_{int(degrees)}"] = _ratio(below, normal_pixels)
        metrics |= {f"{task}_loss": _ratio(loss, images) for task, loss in zip(TASKS, task_losses, strict=True)}
        return metrics | {"total_loss": _ratio(sum(task_losses), images)}


def segmentation_scores(confusion: Tensor) -> dict[str, float]:
    """Return the mean IoU over the classes that occur, and the accuracy, from a confusion matrix (truth by rows)."""
    hit, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    iou = (hit / (true + predicted - hit))[true > 0]
    return {
        "miou": float(iou.mean()) if len(iou) else math.nan,
        "pixel_accuracy": _ratio(float(hit.sum()), float(confusion.sum())),
    }


def delta_m(values: Mapping[str, float], baseline: Mapping[str, float], metrics: Sequence[str] = PAPER_DELTA) -> float:
    """Return the paper's Δ_M: the mean relative improvement over a baseline in three metrics, positive = better."""
    changes = [_ratio(values[m] - baseline[m], baseline[m]) * (1 if HIGHER_IS_BETTER[m] else -1) for m in metrics]
    return sum(changes) / len(changes)


def delta_m_percent(
    values: Mapping[str, float], baseline: Mapping[str, float], metrics: Sequence[str] = COMMON_DELTA
) -> float:
    """Return Δ_M as most papers print it: in percent, over nine metrics, negative = better."""
    return -100 * delta_m(values, baseline, metrics)


def _histogram_median(histogram: Tensor) -> float:
    """Return the centre of the bin that contains the median."""
    total = float(histogram.sum())
    if not total:
        return math.nan
    median_bin = int(torch.searchsorted(histogram.cumsum(0), total / 2))
    return (median_bin + 0.5) * 180 / BINS


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
