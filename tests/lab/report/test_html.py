"""The page, looked at in a browser: loads from disk, hides nothing, toggles, fits, and says what it could not use."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers.browser import Open, overflow
from helpers.fake_runs import fake_run
from typer.testing import CliRunner

from counterpoise.lab.cli.app import app
from counterpoise.lab.data.visualisation import PREDICTED, TRUTH
from counterpoise.lab.engine import Store, spec
from counterpoise.lab.report import collect_runs, write_page
from counterpoise.lab.report.figures.spec import FigureSpec
from counterpoise.lab.report.html import ORDER
from counterpoise.lab.report.run_collection import report_variants, seeds_to_report
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.dense import on_synthetic_rooms

EVIL = "<script>alert('x')</script>&\"<b>"
TASKS = ("seg", "depth", "normals")


def finish(store: Store, study: Study, seeds: tuple[int, ...], tasks: tuple[str, ...], pictures: bool = False) -> int:
    sheets = {TRUTH: b"RIFF", PREDICTED: b"RIFF"} if pictures else {}
    cells = [cell for cell in study.grid(seeds=seeds) if not cell.condition.opt_in and not cell.condition.extra]
    for cell in cells:
        store.finish(cell.run, *fake_run(cell.run, tasks), sheets)
    return len(cells)


def blank(drawing: FigureSpec, path: Path) -> list[Path]:
    """Instead of matplotlib, which takes a second for each figure and is tested elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".pdf")]
    for file in written:
        file.touch()
    return written


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two studies of the paper, one on small scenes, and trouble; and the page that is made of them."""
    root = tmp_path_factory.mktemp("page")
    store = Store(root / "runs")
    finish(store, STUDIES["rescaling"], (42, 43, 44), ("a", EVIL))
    finish(store, STUDIES["scale-stress"], STUDIES["scale-stress"].seeds, ("a", "b"))
    small = on_synthetic_rooms(STUDIES["nyuv2"], small=True)
    finish(store, small, (42, 43), TASKS, pictures=True)
    runs = [cell.run for cell in STUDIES["rescaling"].grid(seeds=[42])]
    (store.folder(runs[0]) / "history.json").write_text("[]")  # damaged
    (store.folder(runs[1]) / "result.json").unlink()  # partial
    store.write_circumstances(runs[2], {"machine": EVIL, "torch": "2", "seconds": 3.0})
    store.save_progress("rescaling", "abc", 7, 0.5)
    strange = root / "runs" / f"x{EVIL.replace('/', '')}"
    strange.mkdir()
    (strange / "notes.txt").write_text("not ours")
    out = root / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", blank)
        call = CliRunner().invoke(app, ["report", str(root / "runs"), str(root / "nowhere"), "-o", str(out)])
    assert call.exit_code == 0, call.output
    return root, out


@pytest.fixture(scope="module")
def html(made: tuple[Path, Path]) -> str:
    return (made[1] / "index.html").read_text()


def test_the_page_opens_from_disk_and_every_figure_is_drawn(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html")
    plots = page.locator(".plot")
    assert plots.count() > 20
    for i in range(plots.count()):
        plots.nth(i).scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")
    assert page.locator(".plot svg.main-svg").count() >= plots.count()
    assert page.locator("h1").count() == 1
    assert page.locator("img:not([alt]), .plot:not([aria-label])").count() == 0


def test_the_ledger_has_a_row_for_each_claim_and_what_failed_comes_first(
    made: tuple[Path, Path], open_page: Open
) -> None:
    page = open_page(made[1] / "index.html")
    claims = [claim.text for name in ("rescaling", "scale-stress") for claim in STUDIES[name].claims]
    rows = page.locator(".ledger tbody tr")
    assert rows.count() == len(claims)
    verdicts = [rows.nth(i).get_attribute("data-verdict") or "" for i in range(rows.count())]
    places = [ORDER.index(verdict) for verdict in verdicts]
    titles = [STUDIES[name].title for name in ("rescaling", "scale-stress")]
    studies = [titles.index(rows.nth(i).locator("a").inner_text()) for i in range(rows.count())]
    assert list(zip(places, studies, strict=True)) == sorted(zip(places, studies, strict=True))
    text = page.inner_text(".ledger")
    assert all(claim in text for claim in claims)
    button = page.locator(f"button.filter[data-verdict='{verdicts[0]}']")
    button.click()
    assert page.locator(".ledger tbody tr:visible").count() == len(claims) - verdicts.count(verdicts[0])


def test_a_legend_toggles_its_curves_in_all_panels(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html")
    figure = page.locator("figure[data-name='stress']")
    figure.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('[data-name=stress] .plot[data-drawn]').length === 4")
    traces = "p => p.querySelectorAll('.scatterlayer .trace').length"
    seen = f"[...document.querySelectorAll('[data-name=stress] .plot')].map({traces})"
    before = page.evaluate(seen)
    button = figure.locator(".legend button", has_text=re.compile("^BPGS$"))
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert all(now < then for now, then in zip(page.evaluate(seen), before, strict=True))
    button.click()
    assert page.evaluate(seen) == before


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_no_layout_overflows(made: tuple[Path, Path], open_page: Open, width: int, colours: str) -> None:
    page = open_page(made[1] / "index.html", width=width, colours=colours)
    for i in range(0, page.locator(".plot").count(), 3):
        page.locator(".plot").nth(i).scroll_into_view_if_needed()
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert overflow(page) == 0
    assert page.evaluate("document.documentElement.dataset.theme") == colours


def test_the_button_turns_the_light_on_and_off(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html", colours="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(ground) != dark
    page.click("#theme")
    assert page.evaluate(ground) == dark


def test_it_prints_in_light_with_everything_on_paper(made: tuple[Path, Path], open_page: Open, tmp_path: Path) -> None:
    page = open_page(made[1] / "index.html", colours="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")
    page.emulate_media(media="print")
    assert page.evaluate(
        "document.querySelector('.scroll').scrollHeight <= document.querySelector('.scroll').clientHeight"
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_what_could_not_be_used_is_listed(made: tuple[Path, Path]) -> None:
    found = collect_runs([made[0] / "runs", made[0] / "nowhere"])
    kinds = sorted(problem.kind for problem in found.problems)
    assert kinds == ["damaged", "foreign", "missing", "partial", "partial"]
    assert any("history.json does not match its digest" in problem.reason for problem in found.problems)
    assert any("7 epochs so far" in problem.reason for problem in found.problems)
    text = (made[1] / "index.html").read_text()
    assert text.count("<td>partial</td>") == 2
    damaged = next(Path(problem.path) for problem in found.problems if problem.kind == "damaged")
    assert (damaged / "history.json").read_text() == "[]"  # nothing is mended or removed


def test_nothing_from_outside_is_markup(html: str) -> None:
    assert "alert(" in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert len(re.findall(r"<script(?! type=\"application/json\")[^>]*>", html.split("<script>")[0])) == 0
    for island in re.findall(r'<script type="application/json">(.*?)</script>', html, flags=re.DOTALL):
        assert "<" not in island
        assert set(json.loads(island)) == {"data", "layout"}


def test_figures_are_what_plotly_accepts(html: str) -> None:
    from plotly.graph_objects import Figure

    islands = re.findall(r'<script type="application/json">(.*?)</script>', html, flags=re.DOTALL)
    for island in islands[::5]:
        Figure(json.loads(island.replace('"ink"', '"#000000"')))


def test_the_page_is_small_and_asks_for_nothing(html: str) -> None:
    assert len(html.encode()) < 15 * 2**20
    own = html[: html.index("plotly.js v")]
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", own)
    assert html.count("plotly.js v") <= 2  # inlined once


def test_files_lie_beside_the_page(made: tuple[Path, Path], html: str) -> None:
    links = set(re.findall(r'href="([^"#][^":]*\.(?:png|pdf|csv|md|tex))"', html))
    assert len(links) > 30
    assert all((made[1] / link).is_file() for link in links)
    assert {"tables/rescaling.tex", "figures/stress.pdf", "runs/rescaling.csv"} <= links


def test_pictures_and_runs_are_on_the_page(html: str) -> None:
    assert html.count('src="data:image/webp;base64,') == 1 + 6  # what is true, and six methods
    assert "BPGS, seed 42: segmentation, depth, surface normals of four held-out images" in html
    assert "theta_gain" not in html
    assert "network_clip = 10" in html


def test_recorded_scores_are_shown_and_left_out_where_their_runs_are_here(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", blank)
    recorded = tmp_path / "recorded"
    shutil.copytree(made[1] / "runs", recorded / "runs")
    (recorded / "runs" / "other.csv").write_text("a,b\n1,2\n")
    (recorded / "runs" / "yeast.csv").write_text("a,b\n1,2\n")
    alone = collect_runs([recorded])
    assert [problem.reason[:40] for problem in alone.problems] == [
        "'other' is no study: expected scores nam",
        "expected the scores of yeast, found no c",
    ]
    (variant,) = report_variants(alone)
    assert [study.name for study in variant.studies] == ["rescaling", "scale-stress"]
    both = collect_runs([made[0] / "runs", recorded])
    assert [variant.label for variant in report_variants(both)] == ["", "quick form on small scenes"]
    written = write_page(alone, tmp_path / "out")
    assert "recorded in recorded" in written[0].read_text()


def test_a_run_that_stands_in_two_tables_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", blank)
    store, study = Store(tmp_path / "runs"), on_synthetic_rooms(STUDIES["nyuv2"], small=True)
    count = finish(store, study, (42, 43), TASKS)
    (own,) = [cell for cell in study.grid(seeds=[42]) if (cell.method, cell.condition.key) == ("FAMO", "beyond")]
    store.finish(own.run, *fake_run(own.run, TASKS))
    html = write_page(collect_runs([tmp_path / "runs"]), tmp_path / "out")[0].read_text()
    assert html.count(f"{count + 1} runs") == 2  # of the page, and of its one study
    assert re.search(r"Static · beyond <span[^>]*>1 run<", html)  # the one that its table borrows


def test_a_shortened_study_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    store, study = Store(tmp_path), STUDIES["scale-stress"]
    for cell in study.grid(seeds=[42], epochs=2):
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")))
    found = collect_runs([tmp_path])
    (variant,) = report_variants(found)
    assert (variant.label, variant.epochs) == ("2 epochs", 2)
    assert variant.studies[0].claims == ()
    assert variant.missing["scale-stress"] == len(list(study.grid(epochs=2))) - len(found.runs)


@pytest.mark.parametrize(("study", "epochs"), [("scale-stress", 2), ("yeast", 2)])
def test_nor_are_recorded_scores_of_one(study: str, epochs: int, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    rows = {"method": ["BPGS"], "condition": [STUDIES[study].conditions[0].key], "seed": [42], "lr": [0.1]}
    for count, short in ((STUDIES[study].schedule.epochs, False), (epochs, True)):
        frame = pd.DataFrame(rows | {"epochs": [count]})
        frame.to_csv(tmp_path / "runs" / f"{study}.csv", index=False)
        (variant,) = report_variants(collect_runs([tmp_path]))
        assert variant.label.endswith("fewer epochs") is short
        assert bool(variant.studies[0].claims) is not short


def test_a_run_that_no_study_has_is_foreign(tmp_path: Path) -> None:
    cell = next(STUDIES["scale-stress"].grid(seeds=[42]))
    other = replace(cell.run, model=spec("mlp", hidden=7))
    strange = replace(cell.run, study="strange")
    for run in (other, cell.run, strange):
        Store(tmp_path).finish(run, *fake_run(run, ("a", "b")))
    found = collect_runs([tmp_path])
    assert len(report_variants(found)) == 1
    reasons = " ".join(problem.reason for problem in found.problems)
    assert "not in the grid of scale-stress as it is now" in reasons
    assert "belongs to the study 'strange', which is not known here" in reasons


def test_seeds_are_the_papers_the_ten_and_all() -> None:
    def sets(name: str, seeds: range) -> list[tuple[int, ...]]:
        return seeds_to_report(STUDIES[name], pd.DataFrame({"seed": list(seeds)}))

    ten = tuple(range(42, 52))
    assert sets("rescaling", range(42, 52)) == [(42, 43, 44), ten]
    assert sets("rescaling", range(42, 46)) == [(42, 43, 44), (42, 43, 44, 45)]
    assert sets("rescaling", range(42, 44)) == [(42, 43)]
    assert sets("yeast", range(42, 52)) == [(42, 43, 44), ten]
    assert sets("rescaling", range(42, 82)) == [(42, 43, 44), ten, tuple(range(42, 82))]


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    call = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "out")], env={"COLUMNS": "200"})
    assert call.exit_code == 2
    assert "no run of Counterpoise" in call.output
    assert not (tmp_path / "out").exists()
