"""The recorded results: archives are complete, and the Markdown files follow from them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from helpers.paths import ROOT

from counterpoise.lab.data.visualisation import PREDICTED
from counterpoise.lab.engine.archive import SUFFIX, ArchivedRun, read_archive

RESULTS = ROOT / "results"
ARCHIVES = sorted(RESULTS.rglob(f"*{SUFFIX}"))
FOLDERS = ("synthetic", "synthetic/forty", "beyond", "tabular", "tabular/seventeen", "nyuv2", "physics")


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
        if archive.parent.name == "nyuv2":
            assert run.result["metrics"]["miou"] > 0
            assert all(weight > 0 for epoch in run.history() for weight in epoch["weight"])  # no task was ignored
        else:
            assert run.result["metrics"]["rel_l2"] > 0
        assert run.circumstances["machine"] == "NVIDIA H200"
        assert set(run.pictures) <= {PREDICTED}


@pytest.mark.parametrize("folder", FOLDERS)
def test_markdown_files_follow_from_the_recorded_runs(folder: str, update: ModuleType) -> None:
    assert update.FOLDERS == FOLDERS
    for path, text in update.recorded_texts(folder).items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is outdated: run python results/update.py"


def test_readme_states_the_busy_time_of_the_machine_table() -> None:
    *_, last = (RESULTS / "nyuv2" / "machines.md").read_text().splitlines()
    assert last.removesuffix(".") in (RESULTS / "README.md").read_text()


def test_results_stay_small() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) <= 80
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20
