"""The method atlas in a browser: its numbers equal the library's, and its controls work."""

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from helpers.browser import Open, overflow
from helpers.commands import app
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.lab.atlas import render_atlas

if TYPE_CHECKING:
    from playwright.sync_api import Page

LR = 3e-3
LEARNED = {"bpgs": "theta", "kendall": "log_vars", "kendall-l1": "log_vars", "imtl-l": "log_scales"}
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("atlas") / "atlas.html"
    result = CliRunner().invoke(app, ["atlas", "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


def scene(tasks: int, *, later: bool, steps: int) -> dict[str, Any]:
    """Return random losses. All of them change, because Adam would normalise the rounding error of zero gradients."""
    before = 10 ** RNG.uniform(-2, 2, tasks)
    now = before * 10 ** (RNG.choice([-1, 1], tasks) * RNG.uniform(0.3, 3, tasks))
    return {"before": before.tolist(), "now": now.tolist(), "later": later, "steps": steps}


def gram(tasks: int) -> np.ndarray:
    """Return the Gram matrix of gradients that often conflict and whose norms differ by factors of up to 100."""
    rows = RNG.normal(size=(tasks, 8)) - 0.5 * RNG.normal(size=(1, 8))
    rows[1] -= RNG.uniform(0, 1) * rows[0]
    rows *= 10 ** RNG.uniform(-1, 1, (tasks, 1))
    return np.asarray(rows @ rows.T)


def library_weights(name: str, at: dict[str, Any]) -> list[float]:
    """Return the weights of the library's balancer in a scene, trained by torch's Adam."""
    balancer = cp.make(name, len(at["now"])).double()
    before, now = (torch.tensor(at[key], dtype=torch.float64) for key in ("before", "now"))
    balancer(before if at["later"] else now)  # calibrates BPGS
    if at["later"] and name != "bpgs" and name in LEARNED:
        getattr(balancer, LEARNED[name]).data.copy_(-before.log() if name == "imtl-l" else before.log())
    if name in LEARNED:
        optimizer = torch.optim.Adam(balancer.parameters(), lr=LR)
        for _ in range(at["steps"]):
            optimizer.zero_grad()
            balancer(now.clone().requires_grad_()).backward()
            if all(p.grad is not None and p.grad.abs().max() < 1e-11 for p in balancer.parameters()):
                break  # converged: BPGS starts at the minimum after calibration
            optimizer.step()
    balancer(now)
    assert balancer.weights is not None
    return [float(w) for w in balancer.weights]


def library_aggregate(name: str, matrix: np.ndarray, weights: list[float]) -> list[float]:
    """Return the weights of the library's balancer on gradients with this Gram matrix, after a weighting."""
    tasks = len(matrix)
    rows = torch.linalg.cholesky(torch.tensor(matrix))
    x = torch.zeros(tasks, dtype=torch.float64, requires_grad=True)
    if name == "pcgrad":  # the page shows the mean over all orders
        weighted = torch.tensor(matrix) * torch.tensor(weights).outer(torch.tensor(weights))
        permutations = torch.tensor(list(itertools.permutations(range(tasks))))
        orders = permutations.unsqueeze(1).expand(-1, tasks, -1)
        found = cp.functional.pcgrad_weights(weighted.expand(len(orders), -1, -1), orders).mean(0)
        return (found * torch.tensor(weights)).tolist()
    options: dict[str, Any] = {"every": 1} if cp.describe(name).space == "scale" else {}
    if isinstance(cp.make(name, tasks), cp.Aggregation):
        options["weighting"] = cp.Static(tasks, weights=torch.tensor(weights, dtype=torch.float64)).double()
    balancer = cp.make(name, tasks, **options).double()
    balancer.backward(list(rows @ x + 1), shared=[x])
    assert balancer.weights is not None
    return [float(w) for w in balancer.weights]


def test_weights_equal_those_of_the_library(file: Path, open_page: Open) -> None:
    page = open_page(file)
    moments = [(False, 0), (True, 0), (False, 150), (True, 150)]
    scenes = [scene(tasks, later=later, steps=steps) for tasks in (2, 3, 4) for later, steps in moments]
    grams = [gram(len(at["now"])) for at in scenes]
    loss_space = page.evaluate("Object.keys(LOSS_SPACE)")
    known = {"bpgs", "kendall", "uw-so", "uw-o", "static", "imtl-l", "first-loss", "cosmos", "pbi"}
    assert known <= set(loss_space) <= set(cp.methods("loss"))
    for name, at in itertools.product(loss_space, scenes):
        found = page.evaluate("([name, scene]) => LOSS_SPACE[name](scene)", [name, at])
        np.testing.assert_allclose(found, library_weights(name, at), rtol=1e-6, atol=1e-12, err_msg=f"{name} {at}")
    gradient_scale = page.evaluate("Object.keys(GRADIENT_SCALE)")
    assert {"grad-normalise", "gradnorm-proxy"} <= set(gradient_scale) <= set(cp.methods("scale"))
    for name, matrix in itertools.product(gradient_scale, grams):
        found = page.evaluate("([name, gram]) => GRADIENT_SCALE[name](gram)", [name, matrix.tolist()])
        np.testing.assert_allclose(found, library_aggregate(name, matrix, [1.0] * len(matrix)), rtol=1e-6, err_msg=name)
    gradient_space = page.evaluate("Object.keys(GRADIENT_SPACE)")
    known = {"pcgrad", "cagrad", "mgda", "nash-mtl", "config", "dcgd", "dualproj", "pcd"}
    assert known <= set(gradient_space) <= set(cp.methods("gradient"))
    for name, matrix in itertools.product(gradient_space, grams):
        for weights in ([1.0] * len(matrix), (10 ** RNG.uniform(-0.5, 0.5, len(matrix))).tolist()):
            found = page.evaluate("([n, g, w]) => aggregate(n, g, w)", [name, matrix.tolist(), weights])
            expected = library_aggregate(name, matrix, weights)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * max(map(abs, expected)), err_msg=name)


def test_bpgs_chart_equals_that_of_the_library(file: Path, open_page: Open) -> None:
    page = open_page(file)
    for at in [scene(tasks, later=True, steps=0) for tasks in (2, 3, 4)]:
        balancer = cp.BPGS(len(at["now"])).double()
        for losses in (at["before"], at["now"]):
            balancer(torch.tensor(losses, dtype=torch.float64))
        chart, found = balancer.geometry, page.evaluate("(scene) => bpgsChart(scene)", at)
        assert chart is not None
        for key, name in (("mu", "mu"), ("std", "std"), ("z", "z_over_tau"), ("s", "s"), ("omega", "omega")):
            np.testing.assert_allclose(np.ravel(found[key]), getattr(chart, name).numpy(), rtol=1e-9, err_msg=key)
        assert found["tau"] == pytest.approx(cp.functional.radius(len(at["now"])))


def bars(page: "Page") -> list[float]:
    found = page.eval_on_selector_all(".bar", "bars => bars.map((bar) => Number(bar.dataset.value))")
    return [float(value) for value in found]


def test_keyboard_input_on_sliders_changes_the_bars(file: Path, open_page: Open) -> None:
    page = open_page(file)
    for name in ("#factor", "#steps", "#loss-1", "#norm-0", "#cosine-0-1"):
        before, label = bars(page), page.text_content(f"{name} + output")
        page.focus(name)
        page.keyboard.press("Home")
        assert page.text_content(f"{name} + output") != label
        assert bars(page) != before, name
    page.get_by_role("radio", name="progress", exact=True).check()
    assert min(bars(page)) >= -1
    before = bars(page)
    page.get_by_label("Weight the losses first with").select_option("bpgs")
    assert bars(page) != before
    page.get_by_role("radio", name="4").check()
    assert page.evaluate("document.activeElement.value") == "4"  # the focus is restored
    assert len(bars(page)) == 4 * page.locator(".card").count()


def test_curves_and_bars_show_the_same_values(file: Path, open_page: Open) -> None:
    page = open_page(file)
    panels = page.locator(".panel svg")
    assert panels.count() == 4
    labels = {}
    for label in ("weight", "contribution"):
        page.get_by_role("radio", name=label, exact=True).check()
        labels[label] = panels.nth(1).get_attribute("aria-label")
        shown = page.locator(".card[data-method=kendall] svg").get_attribute("aria-label")
        assert labels[label] is not None
        assert shown is not None
        assert re.findall(r"(\w+) (\d\S*) %", shown) == re.findall(r"(\w+) (\d\S*) %", labels[label] or "")
    assert labels["weight"] != labels["contribution"]


def test_infeasible_cosines_are_reported_and_scaled(file: Path, open_page: Open) -> None:
    page = open_page(file)
    assert page.locator("#infeasible").is_hidden()
    for pair in ("0-1", "0-2", "1-2"):
        page.focus(f"#cosine-{pair}")
        page.keyboard.press("Home")  # three gradients, each opposed to the others
    assert page.locator("#infeasible").is_visible()
    found = np.array(page.evaluate("gramAt(1).gram"))
    assert np.linalg.eigvalsh(found).min() > 0
    assert np.isfinite(bars(page)).all()


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (360, "dark")])
def test_layout_does_not_overflow(file: Path, open_page: Open, width: int, colours: str) -> None:
    page = open_page(file, width=width, height=800, colours=colours)
    assert overflow(page) == 0
    assert page.get_attribute("html", "data-theme") == colours
    for name in ("×1000 later", "Conflict and ×100"):
        page.get_by_role("button", name=name, exact=True).click()
    page.locator("summary").click()
    page.get_by_role("radio", name="4").check()
    assert overflow(page) == 0


def test_page_is_small_and_self_contained() -> None:
    text = render_atlas()
    assert len(text.encode()) < 100_000
    assert "@@" not in text
    assert not re.search(r"(src|href)=.(https?:)?//|@import|url\(", text)
