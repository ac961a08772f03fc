"""QM9: the compact file, the features and targets of molecules, and the split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise.lab.data import DataError
from counterpoise.lab.data.qm9 import (
    ATOMS,
    ELEMENTS,
    FILE,
    MEV,
    REFERENCES,
    SINGLE_TASK_MAE,
    TARGETS,
    UNITS,
    Molecules,
    load_qm9,
    split,
    unpack,
)
from counterpoise.lab.data.qm9_file import RESOLUTION, Packed, digest, read_packed, select, write_packed
from counterpoise.lab.data.qm9_synthetic import synthetic_molecules

FIXTURE = Path(__file__).with_name("qm9_sample.npz")  # 50 molecules, packed from qm9pack with RDKit


@pytest.fixture(scope="module")
def packed() -> Packed:
    return read_packed(FIXTURE)


@pytest.fixture(scope="module")
def molecules(packed: Packed) -> Molecules:
    return unpack(packed)


@pytest.fixture
def folder(packed: Packed, tmp_path: Path) -> Path:
    """A data folder with the 50 molecules."""
    write_packed(packed, tmp_path / FILE)
    return tmp_path


def one(packed: Packed, index: int, *, sanitised: bool = True) -> Molecules:
    return unpack(select(packed, np.flatnonzero(packed.index == index)), sanitised=sanitised)


def test_features_of_methane(packed: Packed) -> None:
    methane = one(packed, 1)
    expected = torch.zeros(ATOMS, 11)
    expected[0, [1, 5, 9, 10]] = torch.tensor([1.0, 6.0, 1.0, 4.0])  # carbon, atomic number 6, sp3, four hydrogens
    expected[1:5, [0, 5]] = 1.0
    torch.testing.assert_close(methane.features()[0], expected)
    bonds = torch.zeros(ATOMS, ATOMS, dtype=torch.uint8)
    bonds[0, 1:5] = bonds[1:5, 0] = 1
    assert methane.bonds[0].equal(bonds)
    assert methane.distances()[0, 0, 1:5].sub(1.0919).abs().max() < 2e-4  # Å, the C-H bond
    assert methane.edges()[0, 0, 1].tolist() == pytest.approx([1, 0, 0, 0, 1.0919], abs=2e-4)
    assert (methane.edges()[0, 5:] == 0).all()


def test_features_of_benzene_with_and_without_aromaticity(packed: Packed) -> None:
    benzene = one(packed, 214)
    assert benzene.features()[0, :6].tolist() == [[0, 1, 0, 0, 0, 6, 1, 0, 1, 0, 1]] * 6
    assert (benzene.bonds[0, :6, :6] == 4).sum(1).tolist() == [2] * 6
    plain = one(packed, 214, sanitised=False)
    assert plain.features()[0, :6].tolist() == [[0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 1]] * 6
    assert (plain.bonds[0, :6, :6] == 1).sum(1).tolist() == [1] * 6
    assert (plain.bonds[0, :6, :6] == 2).sum(1).tolist() == [1] * 6


def test_targets_equal_the_published_ones(packed: Packed) -> None:
    """The row of methane in MoleculeNet, with orbital energies in hartree and atomisation energies in kcal/mol."""
    published = {"mu": 0.0, "alpha": 13.21, "R2": 35.3641, "cv": 6.469}
    hartree = {"homo": -0.3877, "lumo": 0.1171, "ZPVE": 0.044749}
    kcal = {"U0": -395.999594594, "U": -398.643290011, "H": -401.014646522, "G": -372.471772148}
    published |= {name: value * 27_211.386 for name, value in hartree.items()}
    published |= {name: value * 43.364_10 for name, value in kcal.items()}
    found = dict(zip(TARGETS, one(packed, 1).targets[0].tolist(), strict=True))
    assert found == pytest.approx(published, rel=2e-6)


def test_reference_energies_equal_those_of_torch_geometric() -> None:
    electronvolts = [  # of H, C, N, O and F: U0, U, H and G
        [-13.61312172, -1029.86312267, -1485.30251237, -2042.61123593, -2713.48485589],
        [-13.5745904, -1029.82456413, -1485.26398105, -2042.5727046, -2713.44632457],
        [-13.54887564, -1029.79887659, -1485.2382935, -2042.54701705, -2713.42063702],
        [-13.90303183, -1030.25891228, -1485.71166277, -2043.01812778, -2713.88796536],
    ]
    found = np.array([REFERENCES[number] for number in ELEMENTS]).T * MEV / 1000
    np.testing.assert_allclose(found, electronvolts, rtol=2e-7)  # torch_geometric uses the hartree of 2014


def test_molecules_are_consistent(molecules: Molecules, packed: Packed) -> None:
    assert len(molecules) == 50
    assert len(TARGETS) == len(UNITS) == len(SINGLE_TASK_MAE) == molecules.targets.shape[1]
    present = molecules.present()
    assert present.sum(1).tolist() == packed.sizes.tolist()
    assert set(molecules.numbers.unique().tolist()) == {0, 1, 6, 7, 8, 9}
    assert molecules.bonds.equal(molecules.bonds.mT)
    assert set(molecules.bonds.unique().tolist()) == {0, 1, 2, 3, 4}
    for tensor in (molecules.attributes, molecules.bonds, molecules.positions, molecules.features(), molecules.edges()):
        assert not tensor[~present].any()
    hydrogens = ((molecules.bonds > 0) & (molecules.numbers == 1)[:, None]).sum(-1)
    assert molecules.features()[..., 10].equal(hydrogens.float())
    assert (molecules.bonds > 0).sum(-1)[molecules.numbers == 1].eq(1).all()
    bonded = molecules.distances()[molecules.bonds > 0]
    assert bonded.min() > 0.9
    assert bonded.max() < 1.75


def test_distances_equal_those_of_numpy(molecules: Molecules, packed: Packed) -> None:
    size = int(packed.sizes[0])
    positions = packed.positions[:size] * RESOLUTION
    expected = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    np.testing.assert_allclose(molecules.distances()[0, :size, :size].numpy(), expected, atol=1e-6)


def test_file_round_trip_and_rows(folder: Path, molecules: Molecules) -> None:
    loaded = load_qm9(folder)
    for name in ("numbers", "attributes", "bonds", "positions", "targets"):
        assert getattr(loaded, name).equal(getattr(molecules, name)), name
    some = load_qm9(folder, 10)
    assert some.targets.equal(molecules[torch.arange(0, 50, 5)].targets)
    assert some.bonds.equal(molecules[::5].bonds)
    with pytest.raises(DataError, match="expected a number of molecules from 1 to 50, found 51"):
        load_qm9(folder, 51)


def test_errors_name_missing_and_damaged_files(folder: Path) -> None:
    for place in (None, folder / "elsewhere"):
        with pytest.raises(DataError, match=r"qm9 not found: expected qm9.qm9.npz in the data folder .* pack qm9"):
            load_qm9(place)
    path = folder / FILE
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    for damaged in (content[: len(content) // 2], bytes(flipped), b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"qm9.npz: expected .*found"):
            load_qm9(folder)


def test_altered_array_is_detected(packed: Packed, tmp_path: Path) -> None:
    path = tmp_path / FILE
    write_packed(packed, path)
    with np.load(path) as file:
        stored = {name: file[name] for name in file.files}
    for change, message in (
        ({"digest": np.array("0" * 32)}, "the file is damaged"),
        ({"layout": 0}, "layout 1, found 0"),
    ):
        np.savez(path, **{**stored, **change})
        with pytest.raises(DataError, match=message):
            load_qm9(tmp_path)
    assert digest(packed) != digest(select(packed, np.arange(49)))


@pytest.mark.parametrize(("count", "held_out"), [(130_831, 10_000), (5000, 500), (50, 5)])
def test_split_partitions_the_molecules(count: int, held_out: int) -> None:
    train, validation, test = split(count, seed=1)
    assert (len(train), len(validation), len(test)) == (count - 2 * held_out, held_out, held_out)
    assert torch.cat([train, validation, test]).sort().values.equal(torch.arange(count))
    assert all(a.equal(b) for a, b in zip(split(count, 1), (train, validation, test), strict=True))
    assert not split(count, 2)[2].equal(test)


def test_synthetic_molecules_have_the_layout_of_the_real_ones(molecules: Molecules) -> None:
    synthetic = synthetic_molecules(20)
    for name in ("numbers", "attributes", "bonds", "positions", "targets"):
        real, drawn = getattr(molecules, name), getattr(synthetic, name)
        assert drawn.dtype == real.dtype, name
        assert drawn.shape[1:] == real.shape[1:], name
    assert synthetic.bonds.equal(synthetic.bonds.mT)
    assert not synthetic.features()[~synthetic.present()].any()
    assert synthetic_molecules(20).targets.equal(synthetic.targets)
    assert not synthetic_molecules(20, seed=1).targets.equal(synthetic.targets)
