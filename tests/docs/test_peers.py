"""The comparison with TorchJD and LibMTL covers all their methods, and the page is up to date."""

import importlib
import inspect
import re
from typing import Any

import pytest
import torchjd.aggregation
import torchjd.scalarization
from helpers.paths import ROOT

import counterpoise as cp

PAGE = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("peers")


def test_tables_of_the_page_are_up_to_date(peers: Any) -> None:
    for name, table in peers.tables().items():
        found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", PAGE, re.DOTALL)
        assert found is not None
        assert found[1] == table, "run python docs/peers.py"


@pytest.mark.parametrize("module", [torchjd.aggregation, torchjd.scalarization], ids=lambda module: module.__name__)
def test_every_method_that_torchjd_exports_is_listed(peers: Any, module: Any) -> None:
    rows = [re.findall(r"`(\w+)`", row.theirs) for row in peers.torchjd_rows(module)]
    bases = {"Aggregator", "GramianWeightedAggregator", "WeightedAggregator", "Weighting", "Scalarizer"}
    assert sorted(name for names in rows for name in names) == sorted(set(module.__all__) - bases)


def test_every_method_of_libmtl_but_two_is_here(peers: Any) -> None:
    assert len(peers.LIBMTL_RELEASED) == 12
    names = (*peers.LIBMTL_RELEASED, *peers.LIBMTL_REPOSITORY)
    assert {name for name in names if not peers.row([name]).ours} == {"MOML", "FORUM"}


def test_counterparts_are_registered_classes() -> None:
    classes = {cp.describe(name).build.__name__ for name in cp.methods()}
    named = set(re.findall(r"`cp\.(\w+)", PAGE))
    assert named == classes
    assert all(inspect.isclass(getattr(cp, name)) for name in named)
