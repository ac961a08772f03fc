"""QM9: reading the csv files of qm9pack, finding bonds with RDKit, and the command that packs them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import app
from typer.testing import CliRunner

from counterpoise.lab.data import DataError, qm9_pack
from counterpoise.lab.data.locations import SOURCES, data_folder, is_present
from counterpoise.lab.data.qm9 import FILE, HYDROGENS, SP
from counterpoise.lab.data.qm9_file import PUBLISHED, digest, read_packed, select
from counterpoise.lab.data.qm9_graph import Graph, MatchError, molecular_graph
from counterpoise.lab.data.qm9_pack import pack_records
from counterpoise.lab.data.qm9_source import FILES, csv_folder, read_records

SAMPLE = Path(__file__).with_name("qm9_sample.csv")  # 50 molecules in the layout of qm9pack, without unused columns
PACKED = SAMPLE.with_suffix(".npz")
QM9 = next(source for source in SOURCES if source.name == "qm9")

NEEDED = "needs RDKit, or QM9 (COUNTERPOISE_DATA)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with three csv files, as in qm9pack."""
    header, *rows = SAMPLE.read_text().splitlines(keepends=True)
    folder = tmp_path / "data"
    folder.mkdir()
    for name, part in zip(FILES, (rows[:20], rows[20:40], rows[40:]), strict=True):
        (folder / name).write_text("".join([header, *part]))
    return folder


def no_bonds(smiles: str, numbers: np.ndarray, positions: np.ndarray) -> Graph:
    """Return a graph without RDKit."""
    if smiles == "O":
        raise MatchError("no water")
    return Graph(np.zeros(len(numbers), np.uint8), np.zeros((0, 2), np.uint8), np.zeros(0, np.uint8), smiles == "C#N")


def test_csv_files_contain_the_packed_numbers(source: Path) -> None:
    expected = read_packed(PACKED)
    records = [record for record in read_records(source) if record.smiles != "O"]
    packed, report = pack_records(records, no_bonds)
    assert digest(packed, PUBLISHED) == digest(select(expected, np.flatnonzero(expected.index != 3)), PUBLISHED)
    assert (report.molecules, report.reordered, report.corrected) == (49, (5,), (133857,))


def test_molecules_that_do_not_match_are_listed(source: Path) -> None:
    with pytest.raises(DataError, match=r"found 1 others \(3: no water\)"):
        pack_records(read_records(source), no_bonds)


def test_bonds_of_each_kind() -> None:
    """The hydrogens of acetylene may be listed in another order than its carbons, and heavy atoms in any order."""
    pytest.importorskip("rdkit", reason=NEEDED)
    line = np.array([[0.6, 0.0, 0.0], [-0.6, 0.0, 0.0], [-1.66, 0.0, 0.0], [1.66, 0.0, 0.0]])
    graph = molecular_graph("C#C", np.array([6, 6, 1, 1]), line)
    assert graph.ends.tolist() == [[0, 1], [1, 2], [0, 3]]
    assert graph.types.tolist() == [3, 1, 1]
    assert graph.attributes.tolist() == [SP | 1 << HYDROGENS] * 2 + [0, 0]
    graph = molecular_graph("C#N", np.array([1, 7, 6]), np.array([[-1.66, 0, 0], [0.56, 0, 0], [-0.6, 0, 0]]))
    assert (graph.ends.tolist(), graph.reordered) == ([[2, 1], [2, 0]], True)
    interleaved = molecular_graph("C#C", np.array([1, 6, 1, 6]), line[[3, 1, 2, 0]])
    assert (interleaved.ends.tolist(), interleaved.reordered) == ([[1, 3], [3, 0], [1, 2]], False)


@pytest.mark.parametrize(
    ("smiles", "stretch", "message"),
    [
        ("N", 1.0, "N has the elements"),
        ("C(", 1.0, "cannot parse"),
        ("C#C", 1.4, "the bonds are .* long"),
        ("[C]=C", 1.0, "closest heavy atoms"),
        ("[CH].[CH]", 1.0, "not bonded are"),
    ],
)
def test_error_tells_why_a_geometry_does_not_match(smiles: str, stretch: float, message: str) -> None:
    pytest.importorskip("rdkit", reason=NEEDED)
    line = stretch * np.array([[0.6, 0.0, 0.0], [-0.6, 0.0, 0.0], [-1.66, 0.0, 0.0], [1.66, 0.0, 0.0]])
    with pytest.raises(MatchError, match=message):
        molecular_graph(smiles, np.array([6, 6, 1, 1]), line)


def test_errors_name_file_and_line(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source / FILES[1]
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    for damaged, message in (
        (lines[0].replace("SMILES", "Name") + lines[1], "no column SMILES.* in line 1"),
        (lines[0] + lines[1] + lines[2][: len(lines[2]) // 2], "in line 3"),
        (text.replace("'C'", "'Xx'", 1), "Xx.* in line 2"),
        ("", "no column Index"),
    ):
        path.write_text(damaged)
        with pytest.raises(DataError, match=rf"{FILES[1]}: expected a table of qm9pack, found .*{message}"):
            list(read_records(source))
    path.unlink()
    with pytest.raises(DataError, match=rf"found no {FILES[1]}"):
        csv_folder(source)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"qm9pack is not installed: run pip install 'counterpoise\[qm9\]'"):
        csv_folder()


def test_other_molecules_are_rejected_and_not_written(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason=NEEDED)
    result = CliRunner().invoke(app, ["data", "pack", "qm9", "--from", str(source), "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "expected the 130831 molecules of QM9" in " ".join(result.output.split())
    assert not (tmp_path / FILE).exists()


def test_pack_command_writes_the_file(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RDKit, the bonds and the properties of atoms are those of the packed sample."""
    pytest.importorskip("rdkit", reason=NEEDED)
    expected = read_packed(PACKED)
    monkeypatch.setattr(qm9_pack, "MOLECULES", 50)
    monkeypatch.setattr(qm9_pack, "DIGEST", digest(expected, PUBLISHED))
    result = CliRunner().invoke(app, ["data", "pack", "qm9", "--from", str(source), "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "50 molecules packed into" in " ".join(result.output.split())
    assert digest(read_packed(tmp_path / FILE)) == digest(expected)


@pytest.mark.skipif(not is_present(QM9, data_folder()), reason=NEEDED)
def test_real_file_contains_the_published_molecules() -> None:
    path = (data_folder() or Path()) / FILE
    packed = read_packed(path)
    assert (len(packed.index), digest(packed, PUBLISHED)) == (qm9_pack.MOLECULES, qm9_pack.DIGEST)
    assert path.stat().st_size < 30e6


def test_list_tells_how_to_get_the_data(tmp_path: Path) -> None:
    def shown() -> tuple[str, str]:
        output = CliRunner().invoke(app, ["data", "--data", str(tmp_path)], env={"COLUMNS": "200"}).output
        return next(line for line in output.splitlines() if " qm9 " in line).split("│")[3].strip(), output

    present, output = shown()
    assert present == "no"
    assert "qm9: run: pip install 'counterpoise[qm9]', then: counterpoise data pack qm9" in output
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).touch()
    assert shown()[0] == "yes"


def test_pack_command_names_the_known_data_sets(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "pack", "yeast", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "counterpoise data pack qm9, found yeast" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["data", "pack", "qm9"], env={"COUNTERPOISE_DATA": ""})
    assert result.exit_code == 2
    assert "target missing" in result.output
