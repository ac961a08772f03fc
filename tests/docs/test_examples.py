"""Every example runs, with few steps."""

import importlib
import re
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.process_group import run_script

FOLDER = ROOT / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("problem", "distributed"))


@pytest.mark.parametrize("name", NAMES)
def test_example_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    example = importlib.import_module(name)
    example.main(**({} if name == "rescaling" else {"steps": 6}))
    assert capsys.readouterr().out


def test_two_processes_have_the_same_final_parameters(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(FOLDER)!r}); from distributed import main; main(steps=6)\n")
    sums = [re.findall(r"parameters sum to (\S+),", output) for output in run_script(script)]
    assert len(sums[0]) == 1
    assert sums[0] == sums[1]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80
