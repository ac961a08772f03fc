"""What is recorded under results/nyuv2: whole run folders, and tables that are theirs."""

import json
from pathlib import Path

import pytest
from helpers.paths import ROOT

from counterpoise.lab.engine import Store
from counterpoise.lab.engine.store import read_run_folder
from counterpoise.lab.report import Report, machine_table
from counterpoise.lab.report.run_collection import seeds_to_report
from counterpoise.lab.studies import find_study

RECORDED = ROOT / "results" / "nyuv2"
STUDIES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir() and path.name != "report")


@pytest.mark.parametrize("folder", sorted(RECORDED.glob("nyuv2*/*")), ids=lambda folder: folder.name)
def test_a_run_is_whole_and_holds_no_photograph(folder: Path) -> None:
    description, result = read_run_folder(folder)
    assert f'"study":"{folder.parent.name}"' in description
    assert result["metrics"]["miou"] > 0
    history = json.loads((folder / "history.json").read_text())
    assert all(weight > 0 for epoch in history for weight in epoch["weight"])  # no task was left out
    assert not (folder / "truth.webp").exists()


def test_the_report_was_written_from_these_runs(tmp_path: Path) -> None:
    Report([find_study(name) for name in STUDIES], Store(RECORDED), device="cuda", choose_seed_sets=seeds_to_report).write_texts(tmp_path)
    for file in [file for file in (RECORDED / "report").rglob("*") if file.suffix in (".csv", ".md")]:
        assert file.read_text() == (tmp_path / file.relative_to(RECORDED / "report")).read_text(), file.name
    made = machine_table(RECORDED, STUDIES)
    assert (RECORDED / "made.md").read_text() == made
    assert made.splitlines()[-1][:-1] in (RECORDED.parent / "README.md").read_text()  # the minutes
