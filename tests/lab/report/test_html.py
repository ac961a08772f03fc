"""The page in a browser: it opens from disk, draws all figures, fits the window, and lists what it could not use."""

import base64
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers.browser import Open, overflow
from helpers.commands import app
from helpers.empty_figures import write_empty_figures
from helpers.fake_runs import fake_run
from typer.testing import CliRunner

from counterpoise.lab.data.visualisation import PREDICTED, TRUTH
from counterpoise.lab.engine import Store, spec
from counterpoise.lab.engine.archive import SUFFIX, pack
from counterpoise.lab.report import collect_runs, write_page
from counterpoise.lab.report.html_ledger import VERDICT_ORDER
from counterpoise.lab.report.html_runs import run_details
from counterpoise.lab.report.variants import report_variants, seeds_to_report
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.dense import on_synthetic_rooms

MARKUP = "<script>alert('x')</script>&\"<b>"
TASKS = ("seg", "depth", "normals")


def finish(store: Store, study: Study, seeds: tuple[int, ...], tasks: tuple[str, ...], pictures: bool = False) -> int:
    sheets = {TRUTH: b"RIFF", PREDICTED: b"RIFF"} if pictures else {}
    cells = [cell for cell in study.grid(seeds=seeds) if not cell.condition.opt_in and not cell.condition.extra]
    for cell in cells:
        store.finish(cell.run, *fake_run(cell.run, tasks), sheets)
    return len(cells)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of two studies of the paper and of one on small scenes, some of them damaged, and their page."""
    root = tmp_path_factory.mktemp("page")
    store = Store(root / "runs")
    finish(store, STUDIES["rescaling"], (42, 43, 44), ("a", MARKUP))
    finish(store, STUDIES["scale-stress"], STUDIES["scale-stress"].seeds, ("a", "b"))
    small = on_synthetic_rooms(STUDIES["nyuv2"], small=True)
    finish(store, small, (42, 43), TASKS, pictures=True)
    runs = [cell.run for cell in STUDIES["rescaling"].grid(seeds=[42])]
    (store.folder(runs[0]) / "history.json").write_text("[]")  # damaged
    (store.folder(runs[1]) / "result.json").unlink()  # partial
    store.write_circumstances(runs[2], {"machine": MARKUP, "torch": "2", "seconds": 3.0})
    store.save_progress("rescaling", "abc", 7, 0.5)
    unrecognised = root / "runs" / f"x{MARKUP.replace('/', '')}"
    unrecognised.mkdir()
    (unrecognised / "notes.txt").write_text("not ours")
    out = root / "out"
    with pytest.MonkeyPatch.context() as patch:
        write_empty_figures(patch)
        call = CliRunner().invoke(app, ["report", str(root / "runs"), str(root / "nowhere"), "-o", str(out)])
    assert call.exit_code == 0, call.output
    return root, out


@pytest.fixture(scope="module")
def html(made: tuple[Path, Path]) -> str:
    return (made[1] / "index.html").read_text()


def test_page_opens_from_disk_and_draws_every_figure_without_overflow(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html", width=1280, colours="light")
    plots = page.locator(".plot")
    assert plots.count() > 20
    for i in range(plots.count()):
        plots.nth(i).scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")
    assert page.locator(".plot svg.main-svg").count() >= plots.count()
    assert page.locator("h1").count() == 1
    assert page.locator("img:not([alt]), .plot:not([aria-label])").count() == 0
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert overflow(page) == 0
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_ledger_has_a_row_per_claim_and_failures_come_first(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html")
    claims = [claim.text for name in ("rescaling", "scale-stress") for claim in STUDIES[name].claims]
    assert page.locator(".claims[open]").count() == 0
    page.locator(".claims").evaluate_all("all => all.forEach(d => d.open = true)")
    rows = page.locator(".ledger tbody tr")
    assert rows.count() == len(claims)
    verdicts = [rows.nth(i).get_attribute("data-verdict") or "" for i in range(rows.count())]
    places = [VERDICT_ORDER.index(verdict) for verdict in verdicts]
    titles = [STUDIES[name].title for name in ("rescaling", "scale-stress")]
    studies = [titles.index(rows.nth(i).locator("a").first.inner_text()) for i in range(rows.count())]
    assert list(zip(studies, places, strict=True)) == sorted(zip(studies, places, strict=True))
    text = page.inner_text("#ledger")
    assert all(claim in text for claim in claims)
    button = page.locator(f"button.filter[data-verdict='{verdicts[0]}']")
    button.click()
    assert page.locator(".ledger tbody tr:visible").count() == len(claims) - verdicts.count(verdicts[0])


def test_search_shows_matching_claims_and_studies(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html")
    page.fill("#search", "kendall MONOTONICALLY")
    assert page.locator(".ledger tbody tr:visible").count() == 1
    assert page.locator(".claims:visible").count() == 1
    page.fill("#search", "segmentation")
    assert page.locator(".study[id]:visible").count() == 1
    assert page.locator("nav a:visible").count() == 1
    page.fill("#search", "")
    assert page.locator(".study[id]:visible").count() == 3


def test_tables_and_figures_have_links_that_open_them_and_their_data(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html")
    row = page.locator("#claims-rescaling tbody tr").first
    assert not row.is_visible()
    page.evaluate("location.hash = 'claims-rescaling'")
    row.wait_for(state="visible")
    with page.expect_download() as download:
        page.locator("figure[data-name='stress'] button.data").click()
    panels = json.loads(Path(download.value.path()).read_text())
    assert [set(panel) for panel in panels] == [{"data", "layout"}] * 4
    with page.expect_download() as download:
        page.locator("button.image").first.click()
    assert Path(download.value.path()).read_bytes() == b"RIFF"
    captions = page.locator("figure.table > figcaption, figure.figure > figcaption").all_inner_texts()
    assert all(text.split()[-1] == "link" and text.split()[-2] in ("CSV", "data") for text in captions)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    for target in page.locator(".files a, .claims > p a").evaluate_all("all => all.map(a => a.getAttribute('href'))"):
        assert target[1:] in ids if target[0] == "#" else (made[1] / target).is_file()


def test_legend_toggles_curves_in_all_panels(made: tuple[Path, Path], open_page: Open) -> None:
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


def test_button_switches_the_theme(made: tuple[Path, Path], open_page: Open) -> None:
    page = open_page(made[1] / "index.html", colours="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(background) != dark
    page.click("#theme")
    assert page.evaluate(background) == dark


def test_printing_uses_the_light_theme_and_draws_everything_and_a_phone_has_no_overflow(
    made: tuple[Path, Path], open_page: Open
) -> None:
    page = open_page(made[1] / "index.html", width=390, colours="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")
    page.emulate_media(media="print")
    assert page.locator(".claims:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert overflow(page) == 0


def test_problems_are_listed(made: tuple[Path, Path]) -> None:
    found = collect_runs([made[0] / "runs", made[0] / "nowhere"])
    kinds = sorted(problem.kind for problem in found.problems)
    assert kinds == ["damaged", "missing", "partial", "partial", "unrecognised"]
    assert any("history.json does not match its digest" in problem.reason for problem in found.problems)
    assert any("7 epochs so far" in problem.reason for problem in found.problems)
    text = (made[1] / "index.html").read_text()
    assert text.count("<td>partial</td>") == 2
    damaged = next(Path(problem.path) for problem in found.problems if problem.kind == "damaged")
    assert (damaged / "history.json").read_text() == "[]"  # unchanged


def test_text_from_files_is_escaped(html: str) -> None:
    assert "alert(" in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert len(re.findall(r"<script(?! type=\"text/plain\")[^>]*>", html)) == 1
    for island in packed_figures(html):
        assert set(json.loads(island)) == {"data", "layout"}


def unpack(html: str, name: str) -> str:
    """Return a compressed text of the page."""
    (text,) = re.findall(rf'<script type="text/plain" id="{name}">([\w+/=]*)</script>', html)
    return gzip.decompress(base64.b64decode(text)).decode()


def packed_figures(html: str) -> list[str]:
    """Return the JSON of all panels in the order of the page."""
    return unpack(html, "figures").split("\n")


def panels(html: str, name: str) -> list[str]:
    """Return the JSON of the panels of a figure."""
    (figure,) = re.findall(rf'<figure class="figure"[^>]* data-name="{name}">(.*?)</figure>', html, flags=re.DOTALL)
    return [packed_figures(html)[int(number)] for number in re.findall(r'data-figure="(\d+)"', figure)]


def test_plotly_accepts_the_figures_and_each_has_data(html: str) -> None:
    from plotly.graph_objects import Figure

    islands = packed_figures(html)
    assert len(islands) > 20
    for island in islands[::5]:
        figure = Figure(json.loads(island.replace('"text-colour"', '"#000000"')))
        assert figure.data
        for trace in figure.data:
            values = trace.z if trace.type == "heatmap" else trace.y
            assert any(value is not None for value in values)


def test_each_panel_of_a_figure_shows_every_method(html: str) -> None:
    found = panels(html, "stress")
    assert len(found) == 4
    for place, panel in enumerate(found):
        study = STUDIES["scale-stress" if place % 2 == 0 else "rescaling"]
        curves = [trace for trace in json.loads(panel)["data"] if trace["mode"] == "lines+markers"]
        assert [trace["name"] for trace in curves] == list(study.methods)
        assert {len(trace["x"]) for trace in curves} == {4}  # the scale factors


def test_page_is_small_and_self_contained(html: str) -> None:
    assert len(html.encode()) < 3 * 2**20
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", html)
    assert "plotly.js v" in unpack(html, "plotly")


def test_linked_files_exist(made: tuple[Path, Path], html: str) -> None:
    links = set(re.findall(r'href="([^"#][^":]*\.(?:png|pdf|csv|md|tex))"', html))
    assert len(links) > 30
    assert all((made[1] / link).is_file() for link in links)
    assert {"tables/rescaling.tex", "figures/stress.pdf", "runs/rescaling.csv"} <= links


def test_page_contains_predictions_and_run_details(html: str) -> None:
    assert html.count('src="data:image/webp;base64,') == 1 + 6  # ground truth and six methods
    assert "BPGS, seed 42: segmentation, depth, surface normals of four held-out images" in html
    assert "theta_gain" not in html
    assert "network_clip = 10" in html


def test_run_details_say_once_what_runs_share(tmp_path: Path) -> None:
    study = replace(
        STUDIES["scale-stress"], methods={m: STUDIES["scale-stress"].methods[m] for m in ("BPGS", "Kendall")}
    )
    store, cells = Store(tmp_path / "runs"), list(study.grid(seeds=[42, 43, 44]))
    for cell in cells:
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")))
        finished = "today" if cell.run.seed > 42 else "yesterday"
        store.write_circumstances(cell.run, {"machine": "H200", "seconds": 9.5, "runs": 3, "finished": finished})
    pack(store.root, tmp_path / f"scale-stress{SUFFIX}")
    collected = collect_runs([tmp_path / f"scale-stress{SUFFIX}"])
    details = run_details(cells, collected)
    assert {"network", "schedule", "device", "source"} <= details.facts.keys()
    assert details.facts["time (runs together)"] == "9.5 s for 3"
    assert sum(group.count for group in details.groups) == len(cells)
    for group in details.groups:
        assert set(group.facts) == {"data", "method"}
        first, second = group.rows
        assert group.heads == ["score by seed", "finished"]
        assert (first[0][:4], first[1], second[0][:4], second[1]) == ("42: ", "yesterday", "43: ", "today")
        assert second[0].count(": ") == 2
    alone = run_details(cells[:1], collected)
    assert alone.groups[0].heads == ["score by seed"]
    assert run_details([], collected).groups == []


def test_recorded_scores_are_shown_unless_their_runs_are_collected(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_empty_figures(monkeypatch)
    recorded = tmp_path / "recorded"
    shutil.copytree(made[1] / "runs", recorded / "runs")
    (recorded / "runs" / "other.csv").write_text("a,b\n1,2\n")
    (recorded / "runs" / "yeast.csv").write_text("a,b\n1,2\n")
    alone = collect_runs([recorded])
    assert [problem.reason[:40] for problem in alone.problems] == [
        "'other' is not a study: name the file af",
        "expected the scores of yeast, found no c",
    ]
    (variant,) = report_variants(alone)
    assert [study.name for study in variant.studies] == ["rescaling", "scale-stress"]
    both = collect_runs([made[0] / "runs", recorded])
    assert [variant.label for variant in report_variants(both)] == ["", "quick form on small scenes"]
    written = write_page(alone, tmp_path / "out")
    assert "recorded in recorded" in written[0].read_text()


def test_run_in_two_tables_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_empty_figures(monkeypatch)
    store, study = Store(tmp_path / "runs"), on_synthetic_rooms(STUDIES["nyuv2"], small=True)
    count = finish(store, study, (42, 43), TASKS)
    (own,) = [cell for cell in study.grid(seeds=[42]) if (cell.method, cell.condition.key) == ("FAMO", "beyond")]
    store.finish(own.run, *fake_run(own.run, TASKS))
    html = write_page(collect_runs([tmp_path / "runs"]), tmp_path / "out")[0].read_text()
    assert html.count(f"{count + 1} runs") == 2  # of the page and of its only study
    assert re.search(r"Static · beyond <span[^>]*>1 run<", html)  # the table borrows one run


def test_shortened_study_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    store, study = Store(tmp_path), STUDIES["scale-stress"]
    for cell in study.grid(seeds=[42], epochs=2):
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")))
    found = collect_runs([tmp_path])
    (variant,) = report_variants(found)
    assert (variant.label, variant.epochs) == ("2 epochs", 2)
    assert variant.studies[0].claims == ()
    assert variant.missing["scale-stress"] == len(list(study.grid(epochs=2))) - len(found.runs)


@pytest.mark.parametrize(("study", "epochs"), [("scale-stress", 2), ("yeast", 2)])
def test_recorded_scores_of_a_shortened_study_are_not_compared_with_the_paper(
    study: str, epochs: int, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    rows = {"method": ["BPGS"], "condition": [STUDIES[study].conditions[0].key], "seed": [42], "lr": [0.1]}
    for count, short in ((STUDIES[study].schedule.epochs, False), (epochs, True)):
        frame = pd.DataFrame(rows | {"epochs": [count]})
        frame.to_csv(tmp_path / "runs" / f"{study}.csv", index=False)
        (variant,) = report_variants(collect_runs([tmp_path]))
        assert variant.label.endswith("fewer epochs") is short
        assert bool(variant.studies[0].claims) is not short


def test_run_outside_every_grid_is_unrecognised(tmp_path: Path) -> None:
    cell = next(STUDIES["scale-stress"].grid(seeds=[42]))
    other = replace(cell.run, model=spec("mlp", hidden=7))
    unknown = replace(cell.run, study="unknown")
    for run in (other, cell.run, unknown):
        Store(tmp_path).finish(run, *fake_run(run, ("a", "b")))
    found = collect_runs([tmp_path])
    assert len(report_variants(found)) == 1
    reasons = " ".join(problem.reason for problem in found.problems)
    assert "not in the grid of scale-stress as it is now" in reasons
    assert "belongs to the unknown study 'unknown'" in reasons


def test_reported_seeds_are_the_papers_the_ten_and_all() -> None:
    def sets(name: str, seeds: range, searched: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
        runs = [{"method": method, "seed": seed} for method in ("BPGS", "Kendall") for seed in seeds]
        return seeds_to_report(STUDIES[name], pd.DataFrame([*runs, *({"method": "BPGS", "seed": s} for s in searched)]))

    ten = tuple(range(42, 52))
    assert sets("rescaling", range(42, 52)) == [(42, 43, 44), ten]
    assert sets("rescaling", range(42, 46)) == [(42, 43, 44), (42, 43, 44, 45)]
    assert sets("rescaling", range(42, 44)) == [(42, 43)]
    assert sets("yeast", range(42, 52)) == [(42, 43, 44), ten]
    assert sets("rescaling", range(42, 82)) == [(42, 43, 44), ten, tuple(range(42, 82))]
    assert sets("rescaling", range(42, 52), (0, 1)) == [(42, 43, 44), ten, (0, 1)]


def test_report_without_runs_is_an_error(tmp_path: Path) -> None:
    call = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "out")], env={"COLUMNS": "200"})
    assert call.exit_code == 2
    assert "no run of Counterpoise" in call.output
    assert not (tmp_path / "out").exists()
