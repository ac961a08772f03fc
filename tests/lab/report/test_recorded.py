"""The recorded results: archives are complete, and the Markdown files follow from them."""

import importlib.util
import io
import lzma
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from helpers.fake_runs import fake_run
from helpers.paths import ROOT

from counterpoise.lab.data.visualisation import PREDICTED
from counterpoise.lab.engine import Run, Store
from counterpoise.lab.engine.archive import SUFFIX, ArchivedRun, ArchivedStore, pack, read_archive
from counterpoise.lab.engine.config import content_hash
from counterpoise.lab.studies import STUDIES

RESULTS = ROOT / "results"
ARCHIVES = sorted(RESULTS.rglob(f"*{SUFFIX}"))
FOLDERS = (
    *("synthetic", "synthetic/forty", "beyond", "tabular", "tabular/seventeen", "penalties"),
    *("nyuv2", "physics", "physics/search", "molecules"),
)
METRICS = {"nyuv2": "miou", "physics": "rel_l2", "search": "rel_l2", "molecules": "mae_mu"}
"""A metric of each folder of archives that is positive."""


@pytest.fixture(scope="module")
def update() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update", RESULTS / "update.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_archived_runs_are_complete_and_hold_no_photograph(archive: Path) -> None:
    runs = list(read_archive(archive))
    assert runs
    for run in runs:
        assert isinstance(run, ArchivedRun), run
        assert f'"study":"{archive.name.removesuffix(SUFFIX)}"' in run.description
        assert run.result["metrics"][METRICS[archive.parent.name]] > 0
        if archive.parent.name == "nyuv2":
            assert all(weight > 0 for epoch in run.history() for weight in epoch["weight"])  # no task was ignored
        assert run.circumstances["machine"] == "NVIDIA H200"
        assert set(run.pictures) <= {PREDICTED}


@pytest.mark.parametrize("folder", FOLDERS)
def test_markdown_files_follow_from_the_recorded_runs(folder: str, update: ModuleType) -> None:
    assert update.FOLDERS == FOLDERS
    for path, text in update.recorded_texts(folder).items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is outdated: run python results/update.py"


def pack_fake_runs(archive: Path, name: str, seeds: list[int]) -> list[Run]:
    """Pack fake runs of one method of a study."""
    study = STUDIES[name]
    grid = replace(study, methods={"Sum": study.methods["Sum"]}, rates=(), rate_seeds=()).grid(seeds=seeds)
    runs = [cell.run for cell in grid if not cell.condition.opt_in]
    store = Store(archive.parent / f"{archive.name}-runs")
    for run in runs:
        store.finish(run, *fake_run(run, ("a", "b")))
    pack(store.root, archive)
    return runs


def test_merging_scores_adds_rows_and_keeps_the_recorded_ones(tmp_path: Path, update: ModuleType) -> None:
    root, given = tmp_path / "results", tmp_path / "knobs.csv"
    recorded = root / "beyond" / "runs" / "knobs.csv.xz"
    recorded.parent.mkdir(parents=True)
    head = "method,condition,seed,lr,macro"
    pd.read_csv(io.StringIO(f"{head}\nBPGS,×1,42,0.001,0.73545\n"), dtype=str).to_csv(recorded, index=False)
    given.write_text(f"{head},peak\nBPGS,×1,42,0.001,0.9,\nBPGS,×1,42,0.003,0.123456789,\n")
    assert update.merge_scores([given], root) == {recorded: 1}
    rows = lzma.decompress(recorded.read_bytes()).decode().splitlines()
    assert rows == [head, "BPGS,×1,42,0.001,0.73545", "BPGS,×1,42,0.003,0.12346"]
    assert update.merge_scores([given], root) == {recorded: 0}
    given.write_text("method,condition,seed,macro\n")
    with pytest.raises(ValueError, match="expected the columns method, condition, seed, lr"):
        update.merge_scores([given], root)
    with pytest.raises(ValueError, match="scores of 'other', got 0"):
        update.merge_scores([tmp_path / "other.csv"], root)


def test_merging_adds_runs_and_keeps_the_recorded_ones(tmp_path: Path, update: ModuleType) -> None:
    first, second, qm9, root = (tmp_path / name for name in (f"a{SUFFIX}", f"b{SUFFIX}", f"c{SUFFIX}", "results"))
    runs = pack_fake_runs(first, "pinn-burgers", [5, 6, 2]), pack_fake_runs(second, "pinn-burgers", [6, 7])
    molecules = pack_fake_runs(qm9, "qm9", [42])
    burgers, searched = (root / folder / f"pinn-burgers{SUFFIX}" for folder in ("physics", "physics/search"))
    assert update.merge([first], root) == {burgers: 2, searched: 1}
    before = dict(read_all(burgers))
    assert update.merge([second, qm9], root) == {burgers: 1, root / "molecules" / f"qm9{SUFFIX}": 1}
    after = dict(read_all(burgers))
    assert before.items() <= after.items()
    assert list(after) == sorted({run.key for run in (*runs[0], *runs[1]) if run.seed >= 5})
    assert ArchivedStore(root / "molecules").result(molecules[0]) is not None
    content = burgers.read_bytes()
    assert update.merge([first, second], root) == {burgers: 0, searched: 0}
    assert burgers.read_bytes() == content


def read_all(archive: Path) -> list[tuple[str, str]]:
    """Return the key and the line of each run."""
    lines = lzma.decompress(archive.read_bytes()).decode().splitlines()
    found = read_archive(archive)
    return [(content_hash(run.description), line) for run, line in zip(found, lines, strict=True)]  # type: ignore[union-attr]


def test_nothing_is_merged_from_damaged_archives_or_other_studies(tmp_path: Path, update: ModuleType) -> None:
    archive = tmp_path / f"a{SUFFIX}"
    pack_fake_runs(archive, "pinn-burgers", [5])
    archive.write_bytes(lzma.compress(lzma.decompress(archive.read_bytes()).replace(b'"peak":0.95', b'"peak":0.96')))
    with pytest.raises(ValueError, match="line 1 is damaged"):
        update.merge([archive], tmp_path / "results")
    assert not (tmp_path / "results").exists()
    store = Store(tmp_path / "runs")
    run = next(iter(STUDIES["rescaling"].grid(seeds=[42]))).run
    store.finish(run, *fake_run(run, ("a", "b")))
    pack(store.root, archive)
    with pytest.raises(ValueError, match="got one of 'rescaling'"):
        update.merge([archive], tmp_path / "results")


def test_merging_recorded_runs_changes_nothing(tmp_path: Path, update: ModuleType) -> None:
    archive = RESULTS / "nyuv2" / f"nyuv2-overhead{SUFFIX}"
    update.merge([archive], tmp_path)
    assert read_all(tmp_path / "nyuv2" / archive.name) == read_all(archive)


def test_readme_states_the_busy_time_of_the_machine_table() -> None:
    lines = (RESULTS / "nyuv2" / "machines.md").read_text().splitlines()
    (busy,) = (line for line in lines if "busy for" in line)
    assert busy.removesuffix(".") in (RESULTS / "README.md").read_text()


def test_results_stay_small() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) <= 90
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20
