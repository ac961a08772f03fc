"""The page on physics-informed networks has the recorded numbers, and its script solves the stated equation."""

import importlib
import json
import re
from typing import Any

import pytest
import torch
from helpers.paths import ROOT

import counterpoise as cp

DOCS = ROOT / "docs"
EQUATIONS = ("helmholtz", "burgers", "klein-gordon")
ERROR = r"\d\.\d{4} ± \d\.\d{4}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("pinns_table")


def test_table_has_the_recorded_numbers(script: Any) -> None:
    record = json.loads((DOCS / "pinns.json").read_text(encoding="utf-8"))
    found = script.MARKERS.search((DOCS / "pinns.md").read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == f"{found[1]}{script.table(record['table'])}\n{found[2]}"
    assert list(record["table"]) == list(script.METHODS)


def test_forward_derivatives_agree_with_autograd(script: Any) -> None:
    network = script.Networks([0, 1])
    x = torch.rand(2, 5, 2, requires_grad=True)
    u, second = network.laplacian(x)
    (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
    parts = [torch.autograd.grad(slope[..., i].sum(), x, retain_graph=True)[0][..., i : i + 1] for i in (0, 1)]
    torch.testing.assert_close(u, network(x))
    torch.testing.assert_close(second, parts[0] + parts[1])


@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
def test_bpgs_gives_the_boundary_more_weight_than_lra(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "STEPS", 40)
    ratios = {}
    for method in (cp.BPGS, cp.LRA):
        balancer = method(script.TASKS, batch_shape=len(script.SEEDS))
        script.train_adam(script.Networks(script.SEEDS), balancer)
        ratios[method] = max(script.weight_ratios(balancer))
    assert ratios[cp.BPGS] > 1000 * ratios[cp.LRA]


def test_errors_at_full_length_are_those_of_the_recorded_runs() -> None:
    """Each number of the section is in a generated table of the recorded results."""
    section = (DOCS / "pinns.md").read_text(encoding="utf-8").split("## At full length")[1].split("\n## ")[0]
    tables = {name: (ROOT / f"results/physics/tables/pinn-{name}.md").read_text() for name in EQUATIONS}
    rows = [re.findall(ERROR, line) for line in section.splitlines()]
    three = [row for row in rows if len(row) == len(EQUATIONS)]
    assert len(three) == 8
    for row in three:
        for error, table in zip(row, tables.values(), strict=True):
            assert error in table
    others = [error for row in rows if len(row) in (1, 2) for error in row]
    assert len(others) == 9
    for error in others:
        assert error in tables["helmholtz"]
    assert len(re.findall(r"1\.0000 ± 0\.0000", tables["helmholtz"].split("**Helmholtz")[1])) == 8
