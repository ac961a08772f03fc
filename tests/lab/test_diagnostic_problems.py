"""The diagnosis of problems whose regime is known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import counterpoise as cp
from counterpoise.lab.diagnostic_problems import LABELLED_PROBLEMS, REGIME_PROBLEMS, diagnose_problem


@pytest.mark.parametrize("name", ["rescaling ×1", "rescaling ×1000, graded", "opposed tasks", "opposed tasks, ×1000"])
def test_the_verdict_matches_the_known_regime(name: str) -> None:
    """Check ten seeds that were not used to choose the thresholds. At least nine must be right."""
    truth, make = LABELLED_PROBLEMS[name]
    assert sum(diagnose_problem(make(seed), steps=40).verdict == truth for seed in range(10)) >= 9


def test_the_conflict_regime_of_the_paper_has_no_gradient_conflict() -> None:
    """The expected cosine of its task directions is ρ² > 0, and a linear head absorbs a sign."""
    found = diagnose_problem(REGIME_PROBLEMS["heterogeneous, conflict"](42), steps=40)
    assert found.verdict == "neither"
    assert found.conflict is not None
    assert found.conflict < 0.1


def test_print_shows_a_table_and_each_advice_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnose_problem(LABELLED_PROBLEMS["opposed tasks"][1](0), steps=10)
    found.print()
    printed = capsys.readouterr().out
    assert "median loss" in printed
    assert " ".join(printed.split()).count(found.advice[0][:40]) == 1


def test_the_figure_of_a_diagnosis_is_not_blank(tmp_path: Path) -> None:
    found = diagnose_problem(LABELLED_PROBLEMS["opposed tasks"][1](0), steps=10)
    found.figure(tmp_path / "found.png")
    pixels = np.asarray(Image.open(tmp_path / "found.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["found.png"]


def test_the_table_and_the_figure_of_a_collapse_name_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    balancer = cp.UWO(["error", "penalty"])
    with cp.diagnose(balancer) as monitor:
        for step in range(60):
            balancer(torch.tensor([5.0, 10 ** (-step / 10)], requires_grad=True))
    monitor.diagnosis.print()
    printed = capsys.readouterr().out
    assert "99.97%" in printed  # the median share of the weights
    assert "Collapse: penalty" in printed
    monitor.diagnosis.figure(tmp_path / "collapse.svg")
    assert "Collapse: penalty" in (tmp_path / "collapse.svg").read_text(encoding="utf-8")
