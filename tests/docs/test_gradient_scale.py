"""The page on gradient scale lists what its script measures, and its main statements hold at one seed."""

import importlib
import re
from typing import Any

import pytest
import torch
from helpers.collapse import PROBLEMS, train
from helpers.paths import ROOT

import counterpoise as cp

PAGE = (ROOT / "docs" / "gradient-scale.md").read_text(encoding="utf-8")


def final_losses(problem_name: str, build: Any) -> list[float]:
    torch.manual_seed(0)
    problem = PROBLEMS[problem_name](seed=0)
    train(problem, build(problem.tasks))
    return [loss.item() for loss in problem.losses().values()]


def test_table_has_the_rows_and_columns_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    script = importlib.import_module("gradient_scale_table")
    table = script.MARKERS.search(PAGE)
    assert table is not None
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[1:-1])
    assert header == ["method", *script.COLUMNS]
    assert [row[0] for row in rows] == list(script.METHODS)
    assert all(re.fullmatch(r"\S+ – \S+", cell) for row in rows for cell in row[1:])


def test_lra_solves_both_terms_of_a_pinn_better_than_equal_weights() -> None:
    equal, annealed = (final_losses("poisson", build) for build in (cp.Static, cp.LRA))
    assert annealed[0] < equal[0]
    assert annealed[1] < equal[1]


@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
def test_normalised_gradients_lose_the_kl_term_of_an_autoencoder() -> None:
    pytest.importorskip("sklearn")
    fixed, normalised = (final_losses("vae", build) for build in (cp.Static, cp.GradNormalise))
    assert normalised[1] < 1e-3 < 1 < fixed[1]
    assert normalised[0] > 1.5 * fixed[0]
