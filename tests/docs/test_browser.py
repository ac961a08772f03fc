"""The test browser reports console errors, network requests and overflow of a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.browser import Open, overflow, strict_page_opener

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def write_page(folder: Path, body: str) -> Path:
    """Write a minimal HTML page and return its path."""
    path = folder / "page.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{body}")
    return path


def test_page_has_the_requested_width_and_colour_scheme(tmp_path: Path, open_page: Open) -> None:
    page = open_page(write_page(tmp_path, "<p>hello"), width=390, colours="dark")
    assert page.inner_text("p") == "hello"
    assert page.evaluate("innerWidth") == 390
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


def test_overflow_is_the_excess_width(tmp_path: Path, open_page: Open) -> None:
    assert overflow(open_page(write_page(tmp_path, "<p>hello"), width=390)) == 0
    wide = write_page(tmp_path, "<body style='margin:0'><div style='width:500px'>wide")
    assert overflow(open_page(wide, width=390)) == 110


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>undefined_name()</script>", "undefined_name"),
        ("<img src='http://127.0.0.1:9/a.png'>", "requested http://127.0.0.1:9/a.png"),
    ],
)
def test_errors_and_requests_of_a_page_fail_the_test(
    tmp_path: Path, browser: "Browser", body: str, problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem), strict_page_opener(browser) as opened:
        opened(write_page(tmp_path, body))
