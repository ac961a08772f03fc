"""The README: its tables match the registry and the recorded results, its code runs, and it stays short."""

import importlib
import re
import sys
from typing import Any, Literal

import pytest
import torch
from helpers.paths import ROOT
from torch import Tensor, nn

import counterpoise as cp

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RESCALING = ROOT / "results" / "synthetic" / "tables" / "rescaling.md"
SECTIONS = [
    "Installation", "Usage", "Which method?", "Methods", "What it works with", "Reproducing the paper", "Contributing",
    "Citation", "Licence",
]  # fmt: skip


def method_table(space: Literal["loss", "scale", "gradient"]) -> str:
    """Return the table of the methods of one space, from the registry."""
    lines = ["| method | class | when to use it | paper | needs |", "| --- | --- | --- | --- | --- |"]
    for name in cp.methods(space):
        m = cp.describe(name)
        needs = ", ".join(f"`{need}`" for need in m.needs)
        paper = f"[{m.paper}]({m.url})" if m.url else m.paper
        cells = (f"`{name}`", f"`cp.{m.build.__name__}`", m.summary, paper or "–", needs or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rescaling_table() -> str:
    """Return the first table of `make reproduce` with the paper's numbers, from the recorded results."""
    factors = ("×1", "×10", "×100", "×1000")
    methods = {"Kendall": "Kendall", "UWSO": "UW-SO", "BPGS": "BPGS", "BPGS (raw ω)": "BPGS, unnormalised"}
    sys.path.append(str(ROOT / "docs"))
    scores = importlib.import_module("recorded").read_first_table(RESCALING)
    lines = [f"| | {' | '.join(factors)} |", f"| --- |{' ---: |' * len(factors)}"]
    for method, title in methods.items():
        row = [scores[method, factor] for factor in factors]
        lines.append(f"| {title} | " + " | ".join(f"{score.mean:.3f} ± {score.sd:.3f}" for score in row) + " |")
        if row[0].paper:
            lines.append("| *paper* | " + " | ".join(f"*{score.paper}*" for score in row) + " |")
    return "\n".join(lines)


TABLES = {
    "loss space": method_table("loss"),
    "gradient scale": method_table("scale"),
    "gradient space": method_table("gradient"),
    "rescaling": rescaling_table(),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_match_their_source(name: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", TEXT, re.DOTALL)
    assert found is not None
    assert found[1] == TABLES[name], f"put this between the markers of README.md:\n{TABLES[name]}"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_numbers_of_methods_match_the_registry(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"(?:for|and|offers) (\d+)( other multi-task)? methods", text)
    counts = {int(number) + bool(other) for number, other in found}
    assert counts == {len(cp.methods())}


def test_published_methods_link_to_their_paper() -> None:
    for name in cp.methods():
        method = cp.describe(name)
        unpublished = not method.paper or method.paper.startswith("Subedi 2026")
        assert unpublished or method.url.startswith("https://"), name


def test_sections_are_in_order() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE) == SECTIONS


def test_it_has_at_most_900_words_outside_code_and_tables() -> None:
    text = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\|.*$|<!--.*?-->|<[^>]*>", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link counts as its text
    words = re.findall(r"\w[\w'’.-]*", text)
    assert len(words) <= 900


class Network(nn.Module):
    """A stand-in for the model of the README."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.heads = nn.Linear(8, 16), nn.ModuleList([nn.Linear(16, 3), nn.Linear(16, 1)])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(images).relu()
        return self.heads[0](z), self.heads[1](z)


@pytest.mark.parametrize("version", ["-", "+"], ids=["before", "after"])
def test_the_code_runs_before_and_after_the_change(version: str) -> None:
    """Apply the diff in both directions, then run the block on gradient space after it."""
    (change,) = re.findall(r"^```diff\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    script = "\n".join(line[1:] for line in change.splitlines() if line[:1] in ("", " ", version))
    loader = [(torch.randn(4, 8), torch.randint(3, (4,)), torch.randn(4, 1)) for _ in range(3)]
    names: dict[str, Any] = {"torch": torch, "F": nn.functional, "model": Network(), "loader": loader}
    start = names["model"].encoder.weight.clone()
    exec(script, names)
    assert not torch.equal(start, names["model"].encoder.weight)
    if version == "+":
        assert names["balancer"].weights.shape == (2,)
        (block,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
        z = names["model"].encoder(torch.randn(4, 8))
        names |= {"seg_loss": names["model"].heads[0](z).square().mean(), "depth_loss": z.square().mean()}
        exec(block, names)
        assert isinstance(names["balancer"], cp.CAGrad)
        assert names["balancer"].weights is not None
        trained = {id(p) for group in names["optimizer"].param_groups for p in group["params"]}
        learned = [id(p) for p in names["balancer"].parameters()]
        assert learned
        assert trained >= set(learned)
