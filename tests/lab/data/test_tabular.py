"""Tabular data: reading, encoding, splitting, and errors for invalid files."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from helpers import toy_table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from counterpoise.lab.data import CATALOGUE, DataError, arff, load
from counterpoise.lab.data.locations import SOURCES, data_folder
from counterpoise.lab.data.tabular import find_files, fold_split, published_split, standardise, training_rows


def test_gzipped_and_plain_files_give_the_same_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_table.install(tmp_path, monkeypatch)
    zipped = load("toy", tmp_path)
    path.unlink()
    path.with_suffix("").write_text(toy_table.text())
    plain = load("toy", tmp_path)
    np.testing.assert_array_equal(zipped.x, plain.x)
    np.testing.assert_array_equal(zipped.y, plain.y)
    assert zipped.tasks == ("target0", "target1", "target2")


def test_two_parts_give_the_same_data_as_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_table.install(tmp_path, monkeypatch)
    whole = load("toy", tmp_path)
    head, body = toy_table.text().split("@data\n")
    lines = body.splitlines(keepends=True)
    path.unlink()
    for name, part in (("train", lines[:40]), ("test", lines[40:])):
        (path.parent / f"toy-{name}.arff").write_text(f"{head}@data\n{''.join(part)}")
    np.testing.assert_array_equal(load("toy", tmp_path).x, whole.x)


def test_features_equal_those_of_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path, monkeypatch)
    data = load("toy", tmp_path)
    rows = [line.split(", ") for line in toy_table.text().split("@data\n")[1].splitlines()]
    numeric = np.array([[np.nan if cell == "?" else float(cell) for cell in row[:3]] for row in rows])
    colours = [[row[3]] for row in rows]
    indicators = OneHotEncoder(categories=[["red", "green", "blue"]], handle_unknown="ignore", sparse_output=False)
    encoded = indicators.fit_transform([[c] if c != "?" else ["unknown"] for [c] in colours])
    encoded[[c == "?" for [c] in colours]] = np.nan
    raw = np.concatenate([numeric, encoded], 1)
    np.testing.assert_allclose(data.x, raw)
    train = np.arange(10, 45)
    # Missing cells must not reduce the standard deviation: fit the scaler on known cells, then impute the mean.
    expected = SimpleImputer().fit(StandardScaler().fit(raw[train]).transform(raw[train]))
    expected = expected.transform(StandardScaler().fit(raw[train]).transform(raw))
    np.testing.assert_allclose(standardise(data.x, train), expected, atol=1e-12)


def test_constant_and_empty_columns_stay_finite() -> None:
    x = np.array([[1.0, np.nan, 2.0], [1.0, np.nan, 4.0], [1.0, 3.0, np.nan]])
    np.testing.assert_allclose(standardise(x, [0, 1]), [[0, 0, -1], [0, 0, 1], [0, 3, 0]])


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: truncate(gzip.compress(c)), "expected a complete ARFF table"),
        (lambda c: c[:-9], "expected"),  # in the middle of a row
        (lambda c: c[: c.rstrip().rindex(b"\n") + 1], "expected 60 rows of 7 attributes, found 59 rows of 7"),
        (lambda c: c.replace(b", red, ", b", purple, ", 1), "purple"),
        (lambda c: c.replace(b"0.1257", b"0.1258", 1), "expected the published cells of toy"),
        (lambda c: c.replace(b"@attribute third numeric\n", b""), "expected"),
        (lambda c: b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "expected a complete ARFF table"),
        (lambda c: b"a,b\n1,2\n", "expected"),
        (lambda c: b"", "expected"),
        (lambda c: b"@relation none\n@data\n1,2\n", "expected a complete ARFF table"),
    ],
)
def test_error_names_damaged_or_foreign_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: object, message: str
) -> None:
    path = toy_table.install(tmp_path, monkeypatch)
    content = damage(toy_table.text().encode())  # type: ignore[operator]
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load("toy", tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "found" in str(caught.value)


def test_error_names_missing_files(tmp_path: Path) -> None:
    for folder in (tmp_path, None):
        with pytest.raises(DataError, match=r"rf1 not found: expected rf1/rf1.arff\[.gz\] or rf1/rf1-train"):
            load("rf1", folder)


def test_parsed_tables_are_cached_and_damaged_cache_files_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toy_table.install(tmp_path, monkeypatch)
    first = arff.read(path)
    (cached,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(arff, "parse", lambda *_: pytest.fail("parsed again"))
        second = arff.read(path)
    np.testing.assert_array_equal(first.values, second.values)
    assert second.names == first.names
    assert second.categories == first.categories
    content = cached.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 4] ^= 0xFF
    for damaged in (truncate(content), bytes(flipped), b""):
        cached.write_bytes(damaged)
        np.testing.assert_array_equal(arff.read(path).values, first.values)


def test_unwritable_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_table.install(tmp_path, monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setenv("COUNTERPOISE_CACHE", str(tmp_path / "file" / "cache"))
    assert arff.read(path).values.shape == (60, 7)


@given(st.sampled_from(sorted(CATALOGUE)), st.integers(0, 9))
def test_folds_partition_the_rows(name: str, number: int) -> None:
    entry = CATALOGUE[name]
    split = fold_split(entry, number)
    parts = [split.train, split.validation, split.test]
    assert sorted(np.concatenate(parts)) == list(range(sum(entry.rows)))
    assert len(split.train) == training_rows(entry)
    assert all(len(part) for part in parts)
    if len(entry.rows) == 2:
        np.testing.assert_array_equal(split.test, published_split(entry).test)
    if entry.ordered:
        assert split.train.max() < split.validation.min() < split.test.min()


@pytest.mark.parametrize("name", ["andro", "scm20d"])
def test_each_repetition_tests_every_row_once(name: str) -> None:
    for repetition in (0, 5):
        tests = [fold_split(CATALOGUE[name], repetition + i).test for i in range(5)]
        assert sorted(np.concatenate(tests)) == list(range(CATALOGUE[name].rows[0]))
    assert not np.array_equal(fold_split(CATALOGUE[name], 0).test, fold_split(CATALOGUE[name], 5).test)


def test_instructions_contain_the_address_of_each_data_set() -> None:
    assert set(CATALOGUE) <= {source.name for source in SOURCES}
    assert all("https://" in source.instructions for source in SOURCES if source.name in CATALOGUE)


@pytest.mark.skipif(not os.environ.get("COUNTERPOISE_DATA"), reason="needs the real data in COUNTERPOISE_DATA")
def test_real_data_are_the_published_ones() -> None:
    """Every data set matches its digest and some published facts."""
    folder = data_folder()
    sets = {name: load(name, folder) for name, entry in CATALOGUE.items() if find_files(entry, folder)}
    assert len(sets) == 17
    yeast, rf1 = sets["yeast"], sets["rf1"]
    assert yeast.y.sum(1).mean() == pytest.approx(4.237, abs=5e-4)  # Tsoumakas et al.: label cardinality
    assert np.isnan(rf1.x).sum() == 3264
    assert np.isnan(rf1.x).any(1).sum() == 120
    assert rf1.y[:, rf1.tasks.index("NASI2_48H__0")].argmax() == 4782
    assert not any(np.isnan(data.y).any() for data in sets.values())
    assert sum(np.isnan(data.x).any() for data in sets.values()) == 3
    assert sets["sf1"].x.shape[1] == 33  # ten nominal features
