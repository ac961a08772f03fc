"""Fixtures that open HTML files in headless Chromium and fail on console messages and network requests."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SKIP_REASON = "needs Chromium"
LOCAL_SCHEMES = ("file:", "data:", "blob:", "about:")

Open = Callable[..., "Page"]
"""open_page(path, width=1280, height=900, colours="light" or "dark") -> Page"""


def chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Launch one browser per test file. Its event loop must not outlive the file: other tests run their own."""
    path = chromium()
    if path is None:
        pytest.skip(SKIP_REASON)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Open]:
    """Return a function that opens a file. The test fails on a console error or a network request."""
    with strict_page_opener(browser) as open_file:
        yield open_file


@contextmanager
def strict_page_opener(browser: "Browser") -> Iterator[Open]:
    """Yield a function that opens a file. Raise on exit if a page had a console error or requested the network."""
    contexts, problems = [], []

    def report(path: Path, text: str) -> None:
        problems.append(f"{path.name}: {text}")

    def open_file(
        path: Path, *, width: int = 1280, height: int = 900, colours: Literal["light", "dark"] = "light", **more: Any
    ) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: report(path, m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: report(path, str(error)))
        page.on("request", lambda r: None if r.url.startswith(LOCAL_SCHEMES) else report(path, f"requested {r.url}"))
        page.goto(path.resolve().as_uri(), wait_until="load")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


def overflow(page: "Page") -> float:
    """Return by how many pixels the page is wider than its window."""
    return float(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
