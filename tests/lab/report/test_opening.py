"""The opening of the page in a browser: answers, cards, search and downloads, by keyboard and in print."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from helpers.browser import Open, overflow
from helpers.empty_figures import write_empty_figures

from counterpoise.lab.report import collect_runs, write_page
from counterpoise.lab.studies import STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

METHODS = {"Static": 0.50, "Kendall": 0.52, "BPGS": 0.55, "Nash-MTL": 0.57}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of made-up scores on seventeen tables."""
    folder, noise = tmp_path_factory.mktemp("opening"), np.random.default_rng(0)
    rows = [
        {"method": m, "condition": c.key, "seed": s, "lr": 0.001, "macro": score + 0.02 * noise.standard_normal()}
        for m, score in METHODS.items()
        for c in STUDIES["tabular"].conditions
        if not c.only or m in c.only
        for s in range(3)
    ]
    (folder / "runs").mkdir()
    pd.DataFrame(rows).assign(epochs=100).to_csv(folder / "runs" / "tabular.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        write_empty_figures(patch)
        return write_page(collect_runs([folder]), folder / "page")[0]


def tab_to(page: "Page", selector: str) -> None:
    """Press Tab until an element that matches has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_search_tables_curves_and_downloads_work_by_keyboard(index: Path, open_page: Open) -> None:
    page = open_page(index)
    tab_to(page, "#search")
    page.keyboard.type("nash-mtl")
    rows = page.locator("#leaderboard .more tbody tr:visible")
    assert set(rows.locator("th").all_inner_texts()) == {"Nash-MTL"}
    assert rows.count() == 4  # two comparisons, the time of a step, and what the method is
    assert page.inner_text("#found").startswith("Found: 3 answers, 4 rows of tables on methods, 1 claim")
    assert page.locator(".answer:visible dt, .answer:visible dd").count() == 2 * 3
    links = [link.get_attribute("href") for link in page.locator("#found a").all()]
    assert links[:2] == ["#answer-1", "#table-tables"]
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("no such method")
    assert page.inner_text("#found") == "Nothing found."
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(STUDIES["tabular"].title)
    rows = page.locator("#table-tables tbody tr")
    assert rows.count() == rows.locator("visible=true").count() > 1, "the title of a study shows its methods"
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    assert not page.locator("#found").is_visible()
    assert page.locator("#leaderboard > .more[open]").count() == 0
    page.wait_for_selector(".plot[data-drawn]", state="attached")
    tab_to(page, ".answers a")
    tab_to(page, "#figure-leaderboard button.data")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is visible"
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert len(json.loads(Path(download.value.path()).read_text())) == 2
    tab_to(page, "#figure-leaderboard .legend button")
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    tab_to(page, "#leaderboard .more > summary")
    page.keyboard.press("Enter")
    assert page.locator("#leaderboard > .more[open]").count() == 1
    tab_to(page, "#leaderboard .more .wide")  # scrolls with the arrow keys


def test_cards_have_pictures_on_a_dark_phone_and_print_shows_all_tables(index: Path, open_page: Open) -> None:
    page = open_page(index, width=390, colours="dark")
    assert page.locator(".answers dd > b").all_inner_texts()[-1] == "One backward pass per loss in each step."
    assert page.locator(".card").count() == page.locator(".card .picture svg[aria-label]").count() == 2
    good = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--good')")
    assert good == "#6fcf9f"
    assert page.locator(".card rect.gain").first.evaluate("b => getComputedStyle(b).fill") == "rgb(111, 207, 159)"
    assert overflow(page) == 0
    assert page.locator(".answers details[open]").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#leaderboard > .more:not([open])").count() == 0
    assert page.locator(".answers details:not([open])").count() == 0
    assert not page.locator("#search").is_visible()
    assert not page.locator("#leaderboard .more > summary").first.is_visible()
    assert page.locator("#table-tables").is_visible()
    page.set_viewport_size({"width": 700, "height": 900})  # about the width of a page of paper
    assert overflow(page) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("#leaderboard > .more[open], .answers details[open]").count() == 0  # as before


def test_menu_stays_in_view_and_wide_tables_fade_on_a_phone(index: Path, open_page: Open) -> None:
    page = open_page(index, width=390)
    page.locator("#leaderboard > .more > summary").first.click()
    wide = page.locator("#leaderboard > .more[open] .wide").first
    wide.scroll_into_view_if_needed()
    menu = page.locator(".menu").bounding_box()
    assert menu
    assert menu["y"] == 0
    page.wait_for_function("element => element.classList.contains('continues')", arg=wide.element_handle())
    wide.evaluate("element => element.scrollTo(element.scrollWidth, 0)")
    page.wait_for_function("element => !element.classList.contains('continues')", arg=wide.element_handle())
    page.locator("#leaderboard .answers a").first.evaluate("link => link.click()")
    page.wait_for_timeout(100)
    shown = page.locator("#table-tables-rescaled").bounding_box()
    assert shown
    assert shown["y"] >= menu["height"], "the menu does not cover the target of a link"
