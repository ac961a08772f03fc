"""NYUv2 in its three forms: small files, errors for broken ones, and the real zip file."""

import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from helpers.commands import app
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from counterpoise.lab.data import DataError, cache
from counterpoise.lab.data.arff import CACHE_VARIABLE
from counterpoise.lab.data.dense import load_images
from counterpoise.lab.data.images import IGNORED, Images
from counterpoise.lab.data.nyuv2 import FILE, read_zip
from counterpoise.lab.data.nyuv2_sources import read_folder, read_mat, read_source, write_zip
from counterpoise.lab.data.subset import half_subset
from counterpoise.lab.data.synthetic_rooms import make_rooms

SIZE = (288, 384)
Members = dict[str, bytes]


@pytest.fixture(scope="module")
def rooms() -> Images:
    """Four images of the right size with one unlabelled corner."""
    images = make_rooms(3, 1, *SIZE)
    images.label[:, :20, :30] = IGNORED
    return images


def webp(pixels: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", **options)
    return buffer.getvalue()


def members(count: int = 2) -> Members:
    """Return the members of a zip file in the documented format, written without the code under test."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 14, (count, *SIZE), dtype=np.uint8)
    packed, meta = io.BytesIO(), io.BytesIO()
    np.save(packed, label)
    lo_hi = np.stack((np.linspace(2, 9, count), np.linspace(2.2, 9.2, count)), 1)
    np.savez(meta, train=np.arange(count - 1), test=np.array([count - 1]), depth_max_lo_hi=lo_hi)
    found = {"meta.npz": meta.getvalue(), "label13.npy.xz": lzma.compress(packed.getvalue())}
    for number in range(count):
        found[f"rgb/{number:04d}.webp"] = webp(np.full((*SIZE, 3), 40 * number + 50, np.uint8), quality=95)
        level = np.tile(np.arange(SIZE[1]) % 256, (SIZE[0], 1)).astype(np.uint8)
        found[f"depth8/{number:04d}.webp"] = webp(np.repeat(level[..., None], 3, 2), lossless=True)
    return found


def zipped(path: Path, content: Members) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def test_zip_file_is_read_as_documented(tmp_path: Path) -> None:
    content = members()
    images = read_zip(zipped(tmp_path / "a.zip", content), images=2)
    label = np.load(io.BytesIO(lzma.decompress(content["label13.npy.xz"])))
    assert torch.equal(images.label.long(), torch.from_numpy(label).long().sub(1) % 256)
    for number, largest in enumerate((2.1, 9.1)):
        b = torch.arange(SIZE[1]) % 256
        expected = ((b + 0.5) * largest / 255).clamp(max=largest)
        torch.testing.assert_close(images.depth[number, 7].float(), expected.float(), atol=0.005, rtol=1e-3)
        assert (images.rgb[number].int() - (40 * number + 50)).abs().max() <= 3
    assert (images.train.tolist(), images.held_out.tolist()) == ([0], [1])
    assert images.normals.shape == (2, *SIZE, 3)
    torch.testing.assert_close(images.normals.float().norm(dim=-1), torch.ones(2, *SIZE), atol=2e-3, rtol=0)


def truncate_image(content: Members) -> None:
    content["rgb/0001.webp"] = content["rgb/0001.webp"][:40]


def without(name: str) -> Callable[[Members], None]:
    def damage(content: Members) -> None:
        del content[name]

    return damage


def shrink_depth(content: Members) -> None:
    content["depth8/0000.webp"] = webp(np.zeros((20, 30, 3), np.uint8), lossless=True)


def drop_labels(content: Members) -> None:
    packed = io.BytesIO()
    np.save(packed, np.zeros((1, *SIZE), np.uint8))
    content["label13.npy.xz"] = lzma.compress(packed.getvalue())


def invalid_labels(content: Members) -> None:
    packed = io.BytesIO()
    np.save(packed, np.full((2, *SIZE), 14, np.uint8))
    content["label13.npy.xz"] = lzma.compress(packed.getvalue())


def duplicate_split(content: Members) -> None:
    meta = io.BytesIO()
    np.savez(meta, train=np.array([0, 1]), test=np.array([1]), depth_max_lo_hi=np.ones((2, 2)))
    content["meta.npz"] = meta.getvalue()


def uncompressed_labels(content: Members) -> None:
    content["label13.npy.xz"] = b"not compressed"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate_image, r"rgb/0001.webp cannot be read"),
        (without("depth8/0001.webp"), r"1 of 6 members are missing, the first is depth8/0001.webp"),
        (shrink_depth, r"depth8/0000.webp has shape \(20, 30, 3\), expected \(288, 384, 3\)"),
        (drop_labels, r"label13.npy.xz is uint8 \(1, 288, 384\), expected uint8 \(2, 288, 384\)"),
        (invalid_labels, r"label13.npy.xz has label 14, expected 0 to 13"),
        (duplicate_split, r"meta.npz splits 3 images, expected each of 2 once"),
        (uncompressed_labels, r"label13.npy.xz cannot be read \(LZMAError"),
    ],
)
def test_error_names_damaged_member_of_zip_file(
    damage: Callable[[Members], None], message: str, tmp_path: Path
) -> None:
    content = members()
    damage(content)
    with pytest.raises(DataError, match=message) as caught:
        read_zip(zipped(tmp_path / "broken.zip", content), images=2)
    assert "broken.zip" in str(caught.value)


def test_error_names_file_that_is_not_a_zip_file(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"x.zip: expected the zip file of NYUv2, found File is not a zip file"):
        read_zip(tmp_path / "x.zip")
    with pytest.raises(DataError, match="No such file"):
        read_zip(tmp_path / "y.zip")


def test_packed_images_are_restored(rooms: Images, tmp_path: Path) -> None:
    write_zip(rooms, tmp_path / "rooms.zip")
    back = read_zip(tmp_path / "rooms.zip", images=4)
    assert torch.equal(back.label, rooms.label)
    assert torch.equal(back.train, rooms.train)
    off = (back.depth.float() - rooms.depth.float()).abs()
    assert float((off / rooms.depth.float().amax((1, 2), keepdim=True)).max()) < 0.6 / 255
    assert (back.rgb.float() - rooms.rgb.float()).abs().mean() < 6
    assert [p.name for p in tmp_path.iterdir()] == ["rooms.zip"]


def write_mat(folder: Path, rooms: Images) -> Path:
    """Write the official file with MATLAB's axes: (images, channels, width, height) at 480 × 640."""
    count = len(rooms)
    with h5py.File(folder / "nyu_depth_v2_labeled.mat", "w") as file:
        large = torch.nn.functional.interpolate(rooms.rgb.permute(0, 3, 1, 2).float(), (480, 640), mode="nearest-exact")
        file["images"] = large.byte().permute(0, 1, 3, 2).numpy()
        deep = torch.nn.functional.interpolate(rooms.depth[:, None].float(), (480, 640), mode="nearest-exact")[:, 0]
        file["depths"] = deep.permute(0, 2, 1).numpy()
        raw = rooms.label.long() * 60 + 61  # class c contains the raw classes 60c + 61 to 60c + 120
        raw[rooms.label == IGNORED] = 0
        wide = torch.nn.functional.interpolate(raw[:, None].float(), (480, 640), mode="nearest-exact")[:, 0]
        file["labels"] = wide.permute(0, 2, 1).numpy().astype(np.uint16)
    forty = np.clip((np.arange(1, 895) - 1) // 60, 0, 13)  # raw class → 0 (none) to 13, of 40
    savemat(folder / "classMapping40.mat", {"mapClass": forty[None].astype(np.uint8)})
    thirteen = np.array([c if c <= 13 else 7 for c in range(1, 41)], np.uint8)
    savemat(folder / "class13Mapping.mat", {"classMapping13": {"labels": thirteen[None], "className": "…"}})
    numbers = np.arange(1, count + 1, dtype=np.uint16)
    savemat(folder / "splits.mat", {"trainNdxs": numbers[: count - 1, None], "testNdxs": numbers[count - 1 :, None]})
    return folder / "nyu_depth_v2_labeled.mat"


def test_official_file_is_read_with_its_splits_and_class_maps(rooms: Images, tmp_path: Path) -> None:
    images = read_mat(write_mat(tmp_path, rooms))
    assert torch.equal(images.label, rooms.label)
    assert torch.equal(images.depth, rooms.depth)
    assert (images.rgb.float() - rooms.rgb.float()).abs().mean() < 8
    assert (images.train.tolist(), images.held_out.tolist()) == ([0, 1, 2], [3])


@pytest.mark.parametrize("name", ["splits.mat", "classMapping40.mat", "class13Mapping.mat"])
def test_error_names_invalid_splits_and_class_maps(rooms: Images, tmp_path: Path, name: str) -> None:
    path = write_mat(tmp_path, rooms)
    savemat(tmp_path / name, {"other": np.ones(3)})
    with pytest.raises(DataError, match=f"{name}: has no .*; found other"):
        read_mat(path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=name):
        read_mat(path)


def test_error_names_foreign_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["images"] = np.zeros((1, 3, 4, 4))
    with pytest.raises(DataError, match="has no depths, expected images, depths and labels; found images"):
        read_mat(tmp_path / "a.mat")
    (tmp_path / "b.mat").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match=r"b.mat: expected an HDF5 file"):
        read_mat(tmp_path / "b.mat")


def write_folder(folder: Path, rooms: Images, *, first: bool) -> Path:
    """Write the preprocessed folder with channels first or last and colours in [0, 1]."""
    for part, numbers in (("train", rooms.train), ("val", rooms.held_out)):
        for place, number in enumerate(numbers.tolist()):
            label = rooms.label[number].numpy().astype(np.int64)
            planes = {
                "image": rooms.rgb[number].numpy() / 255,
                "label": np.where(label == IGNORED, -1, label),
                "depth": rooms.depth[number].float().numpy()[..., None],
                "normal": rooms.normals[number].float().numpy(),
            }
            for name, plane in planes.items():
                (folder / part / name).mkdir(parents=True, exist_ok=True)
                turned = plane.transpose(2, 0, 1) if first and plane.ndim == 3 else plane
                np.save(folder / part / name / f"{place}.npy", turned)
    return folder


@pytest.mark.parametrize("first", [True, False])
def test_preprocessed_folder_is_read_unchanged(rooms: Images, tmp_path: Path, first: bool) -> None:
    images = read_folder(write_folder(tmp_path, rooms, first=first))
    for name in ("rgb", "label", "depth", "train", "held_out"):
        assert torch.equal(getattr(images, name), getattr(rooms, name)), name
    torch.testing.assert_close(images.normals, rooms.normals, atol=2e-3, rtol=0)


def test_error_names_file_with_corrupt_images(rooms: Images, tmp_path: Path) -> None:
    path = write_mat(tmp_path, rooms)
    with h5py.File(path) as file:
        images = file["images"][()]
    with h5py.File(path, "r+") as file:
        del file["images"]
        file.create_dataset("images", data=images, compression="gzip", fletcher32=True)
        place = file["images"].id.get_chunk_info(0).byte_offset
    content = path.read_bytes()
    path.write_bytes(content[: place + 9] + b"\0\0\0\0" + content[place + 13 :])
    with pytest.raises(DataError, match=r"nyu_depth_v2_labeled.mat: expected an HDF5 file, found"):
        read_mat(path)


def test_error_names_invalid_file_of_folder(rooms: Images, tmp_path: Path) -> None:
    write_folder(tmp_path, rooms, first=False)
    np.save(tmp_path / "train" / "depth" / "1.npy", np.zeros((3, 4)))
    with pytest.raises(DataError, match=r"depth/1.npy: has shape \(3, 4\), expected \(288, 384\)"):
        read_folder(tmp_path)
    (tmp_path / "train" / "image" / "._0.npy").touch()  # hidden files of macOS are ignored
    (tmp_path / "train" / "image" / "1.npy").unlink()
    with pytest.raises(DataError, match=r"train/image: expected 0.npy, 1.npy, … without a gap"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="found nothing"):
        read_source(tmp_path / "nowhere")


def test_pack_command_accepts_both_forms(rooms: Images, tmp_path: Path) -> None:
    write_mat(tmp_path, rooms)
    for source, out in ((tmp_path, "a.zip"), (write_folder(tmp_path / "npy", rooms, first=True), "b.zip")):
        given = ["data", "pack", "nyuv2", "--from", str(source), "--to", str(tmp_path / out)]
        result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        assert torch.equal(read_zip(tmp_path / out, images=4).label, rooms.label)
    wrong = CliRunner().invoke(app, ["data", "pack", "nyuv2", "--from", str(tmp_path / "no"), "--to", "x.zip"])
    assert wrong.exit_code == 2


def test_failed_packing_leaves_no_files(rooms: Images, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "npy", rooms, first=True)
    (tmp_path / "[/red] in the way").mkdir(parents=True)
    given = ["data", "pack", "nyuv2", "--from", str(source), "--to", str(tmp_path / "[/red] in the way")]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "1000"})
    assert result.exit_code == 2
    assert "Is a directory" in result.output
    assert "[/red] in the way" in result.output
    assert {path.name for path in (tmp_path / "[").iterdir()} == {"red] in the way"}


def test_decoded_images_are_cached_and_damaged_cache_is_ignored(
    rooms: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    calls = []

    def make() -> Images:
        calls.append(1)
        return rooms

    first, again = cache.load_cached("a", make), cache.load_cached("a", make)
    assert len(calls) == 1
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in vars(rooms))
    for name, damage in (("torn", b"torn"), ("empty", b"")):
        cache.load_cached(name, make)
        (tmp_path / name / "depth.npy").write_bytes(damage)
        before = len(calls)
        cache.load_cached(name, make)
        assert len(calls) == before + 1
    monkeypatch.setenv(CACHE_VARIABLE, "")
    cache.load_cached("a", make)
    assert len(calls) == 6


def test_half_subset_is_stratified_and_deterministic() -> None:
    images = make_rooms(60, 4, 24, 32)
    subset = half_subset(images, 30)
    assert torch.equal(subset, half_subset(images, 30))
    assert len(subset) == len(set(subset.tolist())) == 30
    assert set(subset.tolist()) <= set(images.train.tolist())
    majority = torch.tensor([int(torch.bincount(label.flatten().long()).argmax()) for label in images.label[:60]])
    for name in majority.unique().tolist():
        share, whole = (majority[subset] == name).sum(), (majority == name).sum()
        assert abs(float(share) - float(whole) / 2) <= 1
    assert not torch.equal(subset, half_subset(images, 30, seed=12))


def test_error_for_missing_data_explains_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERPOISE_DATA", raising=False)
    with pytest.raises(DataError, match="COUNTERPOISE_DATA, or use --data scenes"):
        load_images("nyuv2", {}, "cpu")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=FILE):
        load_images("nyuv2", {}, "cpu")


@pytest.fixture(scope="module")
def real() -> Images:
    folder = os.environ.get("COUNTERPOISE_DATA")
    if not folder or not (Path(folder) / "nyuv2" / FILE).exists():
        pytest.skip("needs NYUv2 (COUNTERPOISE_DATA)")
    return read_zip(Path(folder) / "nyuv2" / FILE, only=[0, 2, 3, 700, 1448])


def test_real_zip_file_matches_known_facts(real: Images) -> None:
    assert real.rgb.shape == (5, *SIZE, 3)
    assert (real.train.tolist(), real.held_out.tolist()) == ([1, 2, 3], [0, 4])
    assert 0.69 < float(real.depth.min()) < float(real.depth.max()) <= 10
    torch.testing.assert_close(real.normals.float().norm(dim=-1), torch.ones(5, *SIZE), atol=2e-3, rtol=0)
    known = real.label[real.label != IGNORED]
    assert int(known.max()) <= 12
    assert 0.5 < len(known) / real.label.numel() < 0.98
    assert 20 < real.rgb.float().std() < 100
    up = real.normals[real.label == 4].float().mean(0)  # floors
    assert float(up[1]) < -0.6


def test_real_split_and_labels_have_known_counts(real: Images) -> None:
    path = Path(os.environ["COUNTERPOISE_DATA"]) / "nyuv2" / FILE
    with zipfile.ZipFile(path) as archive:
        meta = np.load(io.BytesIO(archive.read("meta.npz")))
        label = np.load(io.BytesIO(lzma.decompress(archive.read("label13.npy.xz"))))
        assert sum(name.startswith("rgb/") for name in archive.namelist()) == 1449
    assert (len(meta["train"]), len(meta["test"])) == (795, 654)
    half_size = Images(
        torch.zeros(1449, 1, 1, 3, dtype=torch.uint8),
        torch.from_numpy(label - 1),
        torch.ones(1449, 1, 1).half(),
        torch.zeros(1449, 1, 1, 3).half(),
        torch.from_numpy(meta["train"]),
        torch.from_numpy(meta["test"]),
    )
    subset = half_subset(half_size)
    assert len(subset) == 398
    assert set(subset.tolist()) < set(meta["train"].tolist())
    share = np.bincount(label.ravel(), minlength=14) / label.size
    assert 0.15 < share[0] < 0.2  # unlabelled
    assert share[1:].argmax() == 11  # walls
    assert share[1:].min() > 0.003
