"""Losses and metrics of dense prediction agree with torchmetrics, NumPy and the paper's table."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.metrics.dense import (
    BINS,
    COMMON_DELTA,
    HIGHER_IS_BETTER,
    DenseMetrics,
    delta_m,
    delta_m_percent,
    losses,
)
from counterpoise.lab.studies import STUDIES

Batch = tuple[dict[str, Tensor], Tensor, Tensor, Tensor]


def batch(seed: int, images: int = 4, classes: int = 13) -> Batch:
    """Return predictions and targets with invalid pixels in every task. The last class never occurs."""
    g = torch.Generator().manual_seed(seed)
    size = (12, 17)
    out = {
        "seg": torch.randn(images, classes, *size, generator=g),
        "depth": torch.randn(images, 1, *size, generator=g) * 4 + 4,
        "normals": torch.randn(images, 3, *size, generator=g),
    }
    label = torch.randint(classes - 1, (images, *size), generator=g)
    label[torch.rand(images, *size, generator=g) < 0.2] = 255
    depth = torch.rand(images, 1, *size, generator=g) * 9 + 0.5
    depth[torch.rand(images, 1, *size, generator=g) < 0.2] = 0
    normals = F.normalize(torch.randn(images, 3, *size, generator=g) + 2 * out["normals"], dim=1)
    normals = normals * (torch.rand(images, 1, *size, generator=g) > 0.2)
    return out, label, depth, normals


def accumulated(batches: list[Batch]) -> dict[str, float]:
    metrics = DenseMetrics(13, "cpu")
    for out, label, depth, normals in batches:
        metrics.add(out, label, depth, normals, len(label))
    return metrics.read()


def numpy_metrics(batches: list[Batch]) -> dict[str, float]:
    """Compute all metrics with NumPy from all pixels at once."""
    lists: list[list[Any]] = [[] for _ in range(5)]
    seg, truth, depth, true_depth, cosine = lists
    sums, images = np.zeros(3), 0
    for out, label, d, n in batches:
        known = label.numpy() != 255
        seg.append(out["seg"].argmax(1).numpy()[known])
        truth.append(label.numpy()[known])
        deep = d.numpy() > 0
        depth.append(np.clip(out["depth"].numpy(), 1e-3, 10)[deep])
        true_depth.append(d.numpy()[deep])
        faced = np.linalg.norm(n.numpy(), axis=1) > 1e-6
        v = out["normals"].numpy().astype(np.float64)
        dot = (v * n.numpy()).sum(1) / np.linalg.norm(v, axis=1) / np.maximum(np.linalg.norm(n.numpy(), axis=1), 1e-12)
        cosine.append(dot[faced])
        logits = out["seg"].numpy().astype(np.float64)
        chance = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        picked = np.take_along_axis(chance, np.where(known, label.numpy(), 0)[:, None], 1)[:, 0]
        each = -picked[known].mean(), np.abs(out["depth"].numpy() - d.numpy())[deep].mean(), (1 - dot[faced]).mean()
        sums, images = sums + np.array(each) * len(label), images + len(label)
    s, t, p, td, c = (np.concatenate(x).astype(np.float64) for x in lists)
    ious = [((s == k) & (t == k)).sum() / ((s == k) | (t == k)).sum() for k in np.unique(t)]
    angle = np.degrees(np.arccos(np.clip(c, -1, 1)))
    return {
        "miou": float(np.mean(ious)), "pixel_accuracy": float((s == t).mean()),
        "abs_rel": float((np.abs(p - td) / td).mean()), "rmse": float(np.sqrt(((p - td) ** 2).mean())),
        "angle": float(angle.mean()), "angle_median": float(np.median(angle)),
        **{f"within_{int(w)}": float((angle < w).mean()) for w in (11.25, 22.5, 30.0)},
        **{f"{task}_loss": float(x / images) for task, x in zip(("seg", "depth", "normals"), sums, strict=True)},
        "total_loss": float(sums.sum() / images),
    }  # fmt: skip


def test_accumulated_metrics_agree_with_numpy() -> None:
    batches = [batch(1), batch(2), batch(3, images=2)]
    ours, theirs = accumulated(batches), numpy_metrics(batches)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        tolerance = 180 / BINS if name == "angle_median" else 2e-3 if name.startswith("within") else 1e-4
        assert ours[name] == pytest.approx(value, abs=tolerance), name


def test_segmentation_and_depth_agree_with_torchmetrics() -> None:
    batches = [batch(4), batch(5)]
    iou = torchmetrics.JaccardIndex(task="multiclass", num_classes=13, ignore_index=255, average="none")
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=13, ignore_index=255, average="micro")
    rmse = torchmetrics.MeanSquaredError(squared=False)
    relative = torchmetrics.MeanAbsolutePercentageError()
    for out, label, depth, _ in batches:
        iou.update(out["seg"], label)
        accuracy.update(out["seg"], label)
        found, deep = out["depth"].clamp(1e-3, 10), depth > 0
        rmse.update(found[deep], depth[deep])
        relative.update(found[deep], depth[deep])
    ours = accumulated(batches)
    present = [c for c in range(13) if any((label == c).any() for _, label, _, _ in batches)]
    assert len(present) == 12  # classes that never occur are excluded from the mean
    assert ours["miou"] == pytest.approx(float(iou.compute()[present].mean()), abs=1e-6)
    assert ours["pixel_accuracy"] == pytest.approx(float(accuracy.compute()), abs=1e-6)
    assert ours["rmse"] == pytest.approx(float(rmse.compute()), rel=1e-5)
    assert ours["abs_rel"] == pytest.approx(float(relative.compute()), rel=1e-5)


def test_losses_agree_with_torch_over_valid_pixels() -> None:
    out, label, depth, normals = batch(6)
    found, counts = losses(out, label, depth, normals)
    faced = normals.norm(dim=1) > 1e-6
    expected = (
        F.cross_entropy(out["seg"], label, ignore_index=255),
        F.l1_loss(out["depth"][depth > 0], depth[depth > 0]),
        (1 - F.cosine_similarity(out["normals"], normals))[faced].mean(),
    )
    torch.testing.assert_close(found, torch.stack(expected))
    assert counts.tolist() == [float((label != 255).sum()), float((depth > 0).sum()), float(faced.sum())]


def test_without_valid_pixels_losses_are_zero_and_metrics_nan() -> None:
    out, label, depth, normals = batch(7)
    for plane in out.values():
        plane.requires_grad_()
    found, counts = losses(out, torch.full_like(label, 255), torch.zeros_like(depth), torch.zeros_like(normals))
    found.sum().backward()
    assert not found.any()
    assert not counts.any()
    assert all(torch.isfinite(plane.grad).all() for plane in out.values() if plane.grad is not None)
    empty = DenseMetrics(13, "cpu").read()
    assert all(math.isnan(empty[name]) for name in HIGHER_IS_BETTER)


def test_padding_images_do_not_count() -> None:
    out, label, depth, normals = batch(8)
    whole = accumulated([({k: v[:3] for k, v in out.items()}, label[:3], depth[:3], normals[:3])])
    label[3], depth[3], normals[3] = 255, 0, 0
    metrics = DenseMetrics(13, "cpu")
    metrics.add(out, label, depth, normals, 3)
    assert metrics.read() == pytest.approx(whole)


def test_delta_m_reproduces_the_column_of_the_paper() -> None:
    paper = STUDIES["nyuv2"].paper
    row = {m: {name: paper[name][m]["main"][0] for name in ("miou", "abs_rel", "angle")} for m in paper["miou"]}
    for method, found in row.items():
        assert delta_m(found, row["Static"]) == pytest.approx(paper["delta_m"][method]["main"][0], abs=0.0021), method


def test_delta_m_percent_has_the_opposite_sign() -> None:
    assert len(COMMON_DELTA) == 9
    baseline = dict.fromkeys(HIGHER_IS_BETTER, 1.0)
    better = {name: 1.1 if up else 0.9 for name, up in HIGHER_IS_BETTER.items()}
    assert delta_m(better, baseline) == pytest.approx(0.1)
    assert delta_m_percent(better, baseline) == pytest.approx(-10.0)
    assert math.isnan(delta_m(better, {**baseline, "miou": 0.0}))
