"""Every example runs, with few steps."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

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
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    completed = subprocess.run([sys.executable, *launch], capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
    sums = re.findall(r"parameters sum to (\S+),", completed.stdout)
    assert len(sums) == 2
    assert sums[0] == sums[1]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80
