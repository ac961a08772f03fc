"""The page on physics-informed networks has the recorded numbers, and its script solves the stated equation."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT

import counterpoise as cp

DOCS = ROOT / "docs"


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


def test_errors_at_full_length_are_those_of_the_recorded_runs(script: Any) -> None:
    page = (DOCS / "pinns.md").read_text(encoding="utf-8")
    found = script.RECORDED_MARKERS.search(page)
    assert found is not None
    assert found[0] == f"{found[1]}{script.recorded_section()}\n{found[2]}", "run python results/update.py"


def test_tables_of_further_runs_appear_when_they_are_recorded(script: Any, tmp_path: Path) -> None:
    first = "**Burgers equation, three losses, 1280 points inside (best learning rate), seeds 5–14** (the paper's)\n\n"
    head = "| method | relative L2 error ↓ |\n| --- | --- |\n"
    constant = first.replace(" inside", " inside, constant learning rate")
    authors = first.replace(" inside", " inside, 42 on each side, constant learning rate")
    short = first.replace(" inside", " inside, 10,000 steps")
    texts = {
        "tables/pinn-burgers.md": f"{first}{head}| DCGD (0.001) | **0.0384 ± 0.0118** (0.0124 ± 0.0046) |\n"
        f"| Sum (1e-05) (seeds 5–6) | <ins>0.0400 ± 0.0100</ins> |\n| MGDA (0.001) | – (0.9780 ± 0.0462) |\n\n"
        f"{constant}{head}| DCGD (0.0001) | 0.0200 ± 0.0010 |\n\n{authors}{head}| DCGD (0.0001) | 0.0100 ± 0.0010 |\n\n"
        f"{short}{head}| IMTL-G (0.001) | 0.0500 ± 0.0010 |\n",
        "tables/pinn-kirchhoff.md": "**Plate, seeds 5–14** (the paper's)\n\n| method | MSE × 10⁹ ↓ | error ↓ |\n"
        "| --- | --- | --- |\n| Sum (0.001) | 1,300 ± 5 (13.0) | 0.3000 ± 0.1000 |\n"
        "| LRA (0.001) | 2.000 ± 0.100 (2.7) | 0.0100 ± 0.0010 |\n",
        "search/tables/pinn-burgers.md": f"{first}{head}| ConFIG (0.001) | 0.0300 ± 0.0010 |\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    combined, one_pass, rates, few_steps, plate, search = re.split(r"\n\n(?=[A-Z])", script.recorded_section(tmp_path))
    assert combined.endswith("| method | Burgers |\n| --- | ---: |\n| DCGD | 0.0384 ± 0.0118 |")
    assert one_pass.endswith("| Sum | 0.0400 ± 0.0100 (seeds 5–6) |")
    heads = "| method | decaying learning rate | constant learning rate | 42 on each side, constant learning rate |"
    assert heads in rates
    assert rates.endswith("| DCGD | 0.0384 ± 0.0118 (0.0124 ± 0.0046) | 0.0200 ± 0.0010 | 0.0100 ± 0.0010 |")
    assert few_steps.endswith("| method | Burgers |\n| --- | ---: |\n| IMTL-G | 0.0500 ± 0.0010 |")
    assert [line.split(" | ")[0] for line in plate.splitlines()[-2:]] == ["| LRA", "| Sum"]
    assert "| LRA | 2.000 ± 0.100 (2.7) | 0.0100 ± 0.0010 |" in plate
    assert search.endswith("| ConFIG | 0.0300 ± 0.0010 |")


def test_generated_statements_agree_with_the_tables(script: Any) -> None:
    """The page computes them from the runs. Here they are read from the Markdown tables."""
    findings, published = (importlib.import_module(f"pinn_{name}") for name in ("findings", "published"))
    tables = {
        title: script.main_table(script.read_tables(script.RESULTS / "tables" / f"pinn-{name}.md"))
        for name, title in script.EQUATIONS.items()
    }
    text = findings.findings()
    for title, cells in tables.items():
        errors = {method: float(cell.split()[0]) for method, cell in cells.items()}
        assert (min(errors, key=lambda method: errors[method]) == "Nash-MTL") == (title in text.split(". Over all")[0])
        assert all(errors[m] >= 0.86 for m in ("BPGS", "UW-O", "EMA-UW-O", "UW-SO", "GLS", "FAMO", "GO4Align"))
        for method, cell in cells.items():
            if "(" in cell and method not in published.FORMS:
                mean, sd = (float(value) for value in re.findall(r"\((\S+) ± (\S+)\)", cell)[0])
                agrees = 1 / (1 + 2 * sd / mean) <= errors[method] / mean <= 1 + 2 * sd / mean
                assert (published.against_published(method, f"{title} equation") == "agrees") == agrees
    assert "BPGS, UW-O, EMA-UW-O, UW-SO, GLS, FAMO, GO4Align and STCH have mean errors of at least 0.86" in text


def test_explanations_of_published_errors_agree_with_the_runs(script: Any) -> None:
    """If this fails after new runs, rewrite the list below the published errors in pinns.md."""
    published = importlib.import_module("pinn_published")
    for method in ("CAGrad", "MGDA", "Aligned-MTL"):
        assert published.against_published(method, published.KLEIN_GORDON).endswith("lower")
    assert published.errors()[["MGDA", "Aligned-MTL"]].loc["Helmholtz equation"].min() > 0.99
    constant = published.errors_with(published.BURGERS, "1280 points inside, constant learning rate")
    for method in ("Sum", "CAGrad"):
        assert published.against_published(method, published.BURGERS) == "agrees"
        assert published.against_published(method, published.BURGERS, constant[method]) != "agrees"
    for method in ("DCGD", "DCGD + LRA"):
        assert published.against_published(method, published.BURGERS) != "agrees"
        assert published.against_published(method, published.BURGERS, constant[method]) == "agrees"


def test_advice_on_other_pages_follows_from_the_runs(script: Any) -> None:
    """If this fails after new runs, rewrite the advice in choosing.md, gradient-scale.md and results/README.md."""
    findings = importlib.import_module("pinn_findings")
    found = findings.errors()
    signs = {method: [findings.better_or_worse(method, title) for title in findings.EQUATIONS]
             for method in ("BPGS (gradient)", "LRA")}  # fmt: skip
    assert signs == {"BPGS (gradient)": [1, -1, 1, 1], "LRA": [1, -1, 1, -1]}
    assert all(found["Nash-MTL"] < found["BPGS (gradient)"])
    assert [found.loc[title].idxmin() for title in findings.EQUATIONS] == [*["Nash-MTL"] * 3, "PCGrad"]
    assert all(found["LRA"][title] < found["BPGS (gradient)"][title] for title in list(findings.EQUATIONS)[:2])
    assert min(found[method][findings.PLATE] for method in importlib.import_module("pinn_published").FORMS) > 0.5
    assert findings.better_on_the_authors_plate() == ["Nash-MTL"]
    assert len(findings.authors_plate()[0]) == 11
    assert "**BPGS (gradient)** has the best mean rank" in findings.findings()
    assert "On Burgers all weights from gradients are worse than the plain sum" in findings.findings()
    missing = {m for m in script.ONE_PASS if m not in findings.errors() or findings.errors()[m].isna().any()}
    assert (len(script.ONE_PASS), missing) == (30, set())
