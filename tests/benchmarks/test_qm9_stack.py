"""The tables of the script that trains stacks of networks for QM9."""

import argparse
import importlib
from dataclasses import replace
from typing import Any

import pytest
from helpers.paths import ROOT

from counterpoise.lab.studies.qm9 import STUDY
from counterpoise.lab.studies.select import select_runs


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("qm9_stack")


class FakeStore:
    """Results of runs whose losses are 1 and 100, in half precision NaN."""

    def result(self, run: Any) -> dict[str, Any]:
        change = None if run.schedule.precision == "fp16" else 50.25
        return {"metrics": {"mae_change": change}, "best": {"epoch": 2}}

    def history(self, run: Any) -> list[dict[str, Any]]:
        half = run.schedule.precision == "fp16"
        row = {"metrics": {"mae_change": None if half else 60.0}, "loss": [None if half else 1.0, 100.0]}
        return [row, row]


def test_results_are_a_table_with_precisions_side_by_side(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cells = []
    for precision in ("fp16", "tf32"):
        study = replace(STUDY, schedule=replace(STUDY.schedule, precision=precision))
        cells += select_runs(study, seeds="42", device="cuda", methods=["Sum", "SI"], conditions=["main"])
    script.print_results(cells, FakeStore())
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["Sum", "Sum", "SI", "SI"]
    assert rows[0][3:] == ["fp16", "nan", "2", "nan", "nan nan"]
    assert rows[1][3:] == ["tf32", "50.2", "2", "10", "60.0 60.0"]


def test_precisions_are_a_list_of_known_names(script: Any) -> None:
    assert script._precisions("fp16,tf32") == ["fp16", "tf32"]
    with pytest.raises(argparse.ArgumentTypeError, match="got fp8"):
        script._precisions("fp16,fp8")
