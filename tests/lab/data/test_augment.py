"""Crops and flips of a batch equal those of single images."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from counterpoise.lab.data.augment import SCALES, Batch, augment_batch, draw_augmentation, evaluation_batch, mix_seed
from counterpoise.lab.data.images import Images


def random_images(height: int, width: int, count: int = 6) -> Images:
    g = torch.Generator().manual_seed(height)
    return Images(
        torch.randint(256, (count, height, width, 3), dtype=torch.uint8, generator=g),
        torch.randint(13, (count, height, width), dtype=torch.uint8, generator=g),
        torch.rand(count, height, width, generator=g).half(),
        F.normalize(torch.randn(count, height, width, 3, generator=g), dim=-1).half(),
        torch.tensor([5, 0, 2, 3]),
        torch.tensor([1, 4]),
    )


def one_by_one(images: Images, seed: int, epoch: int) -> list[Batch]:
    """Augment single images by slicing and F.interpolate."""
    plan, size = draw_augmentation(images, seed=seed, loader_seed=seed, epoch=epoch), images.size
    found = []
    for i, number in enumerate(plan.order.tolist()):
        top, left = int(plan.top[i]), int(plan.left[i])
        rows, columns = slice(top, top + int(plan.height[i])), slice(left, left + int(plan.width[i]))

        def resized(plane: Tensor, mode: str, rows: slice = rows, columns: slice = columns) -> Tensor:
            smooth = {"align_corners": False} if mode == "bilinear" else {}
            return F.interpolate(plane[None, :, rows, columns].float(), size, mode=mode, **smooth)[0]

        rgb = resized(images.rgb[number].permute(2, 0, 1), "bilinear") / 255
        normals = resized(images.normals[number].permute(2, 0, 1), "bilinear")
        depth = resized(images.depth[number][None], "nearest") / plan.scale[i]
        label = resized(images.label[number][None], "nearest")[0].long()
        if plan.flip[i]:
            rgb, normals, depth, label = (plane.flip(-1) for plane in (rgb, normals, depth, label))
            normals[0] *= -1
        found.append(Batch(rgb, label, depth, F.normalize(normals, dim=0)))
    return found


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(48, 72), (45, 50), (32, 33)]), st.integers(0, 1000), st.integers(0, 50))
def test_batch_equals_single_images(size: tuple[int, int], seed: int, epoch: int) -> None:
    images = random_images(*size)
    batch = augment_batch(images, draw_augmentation(images, seed=seed, loader_seed=seed, epoch=epoch))
    for i, single in enumerate(one_by_one(images, seed, epoch)):
        assert torch.equal(batch.label[i], single.label)
        torch.testing.assert_close(batch.depth[i], single.depth)
        torch.testing.assert_close(batch.rgb[i], single.rgb, atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.normals[i], single.normals, atol=2e-3, rtol=0)


def test_augmentation_depends_on_seeds_and_epoch_only() -> None:
    images = random_images(48, 64)
    first, again = (draw_augmentation(images, seed=1, loader_seed=7, epoch=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(vars(first).values(), vars(again).values(), strict=True))
    assert sorted(first.order.tolist()) == [0, 2, 3, 5]
    other = [draw_augmentation(images, seed=1, loader_seed=loader, epoch=3) for loader in range(20)]
    assert len({tuple(d.order.tolist()) for d in other}) > 5
    assert all(torch.equal(d.top, first.top) and torch.equal(d.flip, first.flip) for d in other)
    assert (
        len({mix_seed(seed, epoch, purpose) for seed in range(9) for epoch in range(9) for purpose in range(3)}) == 243
    )


def test_all_scales_offsets_and_flips_occur() -> None:
    images = random_images(12, 16)
    plans = [draw_augmentation(images, seed=0, loader_seed=0, epoch=epoch) for epoch in range(300)]
    scale, top, flip = (torch.cat([getattr(d, name) for d in plans]) for name in ("scale", "top", "flip"))
    for value in SCALES:
        selected = torch.isclose(scale, torch.tensor(value))
        assert 0.28 < selected.float().mean() < 0.39
        assert set(top[selected].tolist()) == set(range(12 - int(12 / value) + 1))
    assert 0.46 < flip.float().mean() < 0.54


def test_evaluation_batch_is_not_augmented() -> None:
    images = random_images(10, 12)
    batch = evaluation_batch(images, torch.tensor([4, 1]))
    torch.testing.assert_close(batch.rgb[1, 2], images.rgb[1, :, :, 2] / 255)
    assert torch.equal(batch.label[0], images.label[4].long())
    assert batch.depth.shape == (2, 1, 10, 12)
    torch.testing.assert_close(batch.normals[0, 0], images.normals[4, :, :, 0].float())
