"""The browser that pages are tested in notices what a page does wrong."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.browser import Open, overflow, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def written(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{body}")
    return path


def test_width_and_colours_are_those_that_were_asked_for(tmp_path: Path, open_page: Open) -> None:
    page = open_page(written(tmp_path, "<p>hello"), width=390, colours="dark")
    assert page.inner_text("p") == "hello"
    assert page.evaluate("innerWidth") == 390
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


def test_overflow_is_what_sticks_out(tmp_path: Path, open_page: Open) -> None:
    assert overflow(open_page(written(tmp_path, "<p>hello"), width=390)) == 0
    wide = written(tmp_path, "<body style='margin:0'><div style='width:500px'>wide")
    assert overflow(open_page(wide, width=390)) == 110


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>undefined_name()</script>", "undefined_name"),
        ("<img src='http://127.0.0.1:9/a.png'>", "asked for http://127.0.0.1:9/a.png"),
    ],
)
def test_what_a_page_does_wrong_is_an_error(tmp_path: Path, browser: "Browser", body: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem), watched(browser) as opened:
        opened(written(tmp_path, body))
