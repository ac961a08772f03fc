"""Losses and metrics of dense prediction: segmentation, depth, surface normals.

Metrics are pooled over all valid pixels of a data set, never averaged over batches. They stream: sums stay on the
device and are read once, at the end.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .task_types import wide

TASKS = ("seg", "depth", "normals")
NEAREST, FARTHEST = 1e-3, 10.0  # metres between which predicted depth is scored
WITHIN = (11.25, 22.5, 30.0)  # degrees
BINS = 18_000  # of the histogram of angles: the median is exact to half of 0.01°
IGNORED = 255

HIGHER_IS_BETTER = {"miou": True, "pixel_accuracy": True, "abs_rel": False, "rmse": False, "angle": False, "angle_median": False,
      "within_11": True, "within_22": True, "within_30": True, "total_loss": False}  # fmt: skip
"""Every metric, and whether more of it is better."""

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
    """The losses of the three tasks and how many pixels stand behind each, both (3).

    Cross-entropy over labelled pixels, absolute error over pixels with depth, 1 − cosine over pixels with a normal.
    Without any such pixel a loss is 0.
    """
    labelled, deep, faced = (mask.sum() for mask in masks(label, depth, normals))
    seg = F.cross_entropy(wide(out["seg"]), label, ignore_index=IGNORED, reduction="sum")
    off = ((wide(out["depth"]) - depth).abs() * (depth > 0)).sum()
    cosine = F.cosine_similarity(wide(out["normals"]), normals, dim=1, eps=1e-8)
    turned = ((1 - cosine) * _faced(normals)).sum()
    sums = torch.stack((seg, off, turned))
    count = torch.stack((labelled, deep, faced)).to(sums.dtype)
    return sums / count.clamp_min(1), count


def masks(label: Tensor, depth: Tensor, normals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels that count for each task."""
    return label != IGNORED, depth > 0, _faced(normals)


def _faced(normals: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(normals, dim=1)
    return length > 1e-6


class DenseMetrics:
    """Sums over a data set, on its device."""

    def __init__(self, classes: int, device: str | torch.device) -> None:
        self.classes = classes
        self.confusion = torch.zeros(classes * classes, device=device, dtype=torch.int64)
        self.angles = torch.zeros(BINS, device=device, dtype=torch.int64)
        # |d̂ − d|/d, (d̂ − d)², pixels; angle, pixels; the losses of the tasks times images, images
        self.sums = torch.zeros(9, device=device, dtype=torch.float64)

    def reset(self) -> None:
        """Starts over, in place."""
        for sums in (self.confusion, self.angles, self.sums):
            sums.zero_()

    @torch.no_grad()
    def add(
        self, out: Mapping[str, Tensor], label: Tensor, depth: Tensor, normals: Tensor, images: Tensor | int
    ) -> None:
        """A batch; `images` of it count, the others have no valid pixel."""
        labelled, deep, faced = masks(label, depth, normals)
        pairs = label * self.classes + out["seg"].argmax(1)
        self.confusion.scatter_add_(0, torch.where(labelled, pairs, 0).flatten(), labelled.flatten().long())
        found = wide(out["depth"]).clamp(NEAREST, FARTHEST)
        error = (found - depth).abs() * deep
        cosine = F.cosine_similarity(wide(out["normals"]), normals, dim=1, eps=1e-8).clamp(-1, 1)
        angle = torch.rad2deg(torch.acos(cosine))
        bins = (angle * (BINS / 180)).long().clamp(0, BINS - 1)
        self.angles.scatter_add_(0, bins.flatten(), faced.flatten().long())
        each = losses(out, label, depth, normals)[0].double() * images
        relative = error / torch.where(deep, depth, 1.0)
        pieces = (relative.sum(), error.square().sum(), deep.sum(), (angle * faced).sum(), faced.sum())
        # A number is filled in on the device: its copy would wait.
        count = images.double().view(1) if isinstance(images, Tensor) else torch.full_like(self.sums[:1], images)
        self.sums += torch.cat((torch.stack([piece.double() for piece in pieces]), each, count))

    def read(self) -> dict[str, float]:
        """All metrics, in one read; those of a task without a valid pixel are NaN."""
        whole = torch.cat((self.confusion.double(), self.angles.double(), self.sums)).cpu()
        confusion = whole[: len(self.confusion)].view(self.classes, self.classes)
        angles, sums = whole[len(self.confusion) : -9], whole[-9:].tolist()
        relative, squared, deep, angle, faced, *each, images = sums
        found = {
            **segmentation(confusion),
            "abs_rel": _ratio(relative, deep),
            "rmse": math.sqrt(_ratio(squared, deep)) if deep else math.nan,
            "angle": _ratio(angle, faced),
            "angle_median": _median(angles),
        }
        for degrees in WITHIN:
            found[f"within_{int(degrees)}"] = _ratio(float(angles[: round(degrees * BINS / 180)].sum()), faced)
        found |= {f"{task}_loss": _ratio(loss, images) for task, loss in zip(TASKS, each, strict=True)}
        return found | {"total_loss": _ratio(sum(each), images)}


def segmentation(confusion: Tensor) -> dict[str, float]:
    """From a confusion matrix, truth by rows: the mean IoU over the classes that are true somewhere, and accuracy."""
    hit, true, chosen = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    iou = (hit / (true + chosen - hit))[true > 0]
    return {
        "miou": float(iou.mean()) if len(iou) else math.nan,
        "pixel_accuracy": _ratio(float(hit.sum()), float(confusion.sum())),
    }


def delta_m(found: Mapping[str, float], baseline: Mapping[str, float], metrics: Sequence[str] = PAPER_DELTA) -> float:
    """The mean signed relative change against a baseline, positive = better: the paper's Δ_M over its three metrics."""
    changes = [_ratio(found[m] - baseline[m], baseline[m]) * (1 if HIGHER_IS_BETTER[m] else -1) for m in metrics]
    return sum(changes) / len(changes)


def delta_m_percent(
    found: Mapping[str, float], baseline: Mapping[str, float], metrics: Sequence[str] = COMMON_DELTA
) -> float:
    """The same as most papers print it: in percent over nine metrics, negative = better."""
    return -100 * delta_m(found, baseline, metrics)


def _median(histogram: Tensor) -> float:
    """The middle of the bin in which half of the count is reached."""
    total = float(histogram.sum())
    if not total:
        return math.nan
    place = int(torch.searchsorted(histogram.cumsum(0), total / 2))
    return (place + 0.5) * 180 / BINS


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
