"""The README: its tables match the registry and the recorded results, its code runs, and it stays short."""

import csv
import re
from typing import Any, Literal

import pytest
import torch
from helpers.paths import ROOT
from torch import Tensor, nn

import counterpoise as cp

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RESCALING = ROOT / "results" / "synthetic" / "tables" / "rescaling.csv"
SECTIONS = [
    "Installation", "Usage", "Which method?", "Methods", "What it works with", "Reproducing the paper", "Contributing",
    "Citation", "Licence",
]  # fmt: skip


def method_table(space: Literal["loss", "gradient"]) -> str:
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
    with RESCALING.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "macro" and row["part"] == ""]
    lines = [f"| | {' | '.join(factors)} |", f"| --- |{' ---: |' * len(factors)}"]
    for method, title in {
        "Kendall": "Kendall",
        "UWSO": "UW-SO",
        "BPGS": "BPGS",
        "BPGS (raw ω)": "BPGS, unnormalised",
    }.items():
        found = [next(r for r in rows if (r["method"], r["condition"]) == (method, factor)) for factor in factors]
        lines.append(
            f"| {title} | " + " | ".join(f"{float(r['mean']):.3f} ± {float(r['sd']):.3f}" for r in found) + " |"
        )
        if found[0]["paper_mean"]:
            cells = (f"*{float(r['paper_mean']):.3f} ± {float(r['paper_sd']):.3f}*" for r in found)
            lines.append("| *paper* | " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES = {
    "loss space": method_table("loss"),
    "gradient space": method_table("gradient"),
    "rescaling": rescaling_table(),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_match_their_source(name: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", TEXT, re.DOTALL)
    assert found is not None
    assert found[1] == TABLES[name], f"put this between the markers of README.md:\n{TABLES[name]}"


def test_every_published_method_links_to_its_paper() -> None:
    for name in cp.methods():
        method = cp.describe(name)
        assert not method.paper or method.url.startswith("https://"), name


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
        assert names["balancer"].weights.shape == (2,)
