"""The count of operations of a stack of physics-informed networks."""

import importlib
from typing import Any

import pytest
from helpers.paths import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pinn_stack")


def test_a_further_method_adds_few_operations_and_only_to_the_balancers(script: Any) -> None:
    methods = script.selected_methods("Sum,Sum ×10,LRA")
    one = script.count_operations("pinn-burgers", {"Sum": methods["Sum"]}, False)
    three, measuring = (script.count_operations("pinn-burgers", methods, due) for due in (False, True))
    assert {part for part in three if three[part] != one[part]} == {"other"}
    assert three["other"] - one["other"] <= 2 * 10
    assert measuring["other"] > three["other"]
