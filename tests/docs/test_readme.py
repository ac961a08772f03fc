"""The tables of the README are the registry; test_docs runs its blocks."""

import re
from typing import Literal

import pytest
from helpers.paths import ROOT

import counterpoise as cp

TEXT = (ROOT / "README.md").read_text()


def table(space: Literal["loss", "gradient"]) -> str:
    """The methods of one space as the registry has them."""
    lines = ["| method | class | when to use it | paper | needs |", "| --- | --- | --- | --- | --- |"]
    for name in cp.methods(space):
        m = cp.describe(name)
        needs = ", ".join(f"`{need}`" for need in m.needs)
        cells = (f"`{name}`", f"`cp.{m.build.__name__}`", m.summary, m.paper or "–", needs or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize("space", ["loss", "gradient"])
def test_the_tables_are_the_registry(space: Literal["loss", "gradient"]) -> None:
    found = re.search(rf"<!-- {space} space -->\n(.*?)\n?<!-- /{space} space -->", TEXT, re.DOTALL)
    assert found is not None
    assert found[1] == table(space), f"put this between the markers of README.md:\n{table(space)}"
