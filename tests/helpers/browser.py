"""Pages in a real browser: a file is opened from disk in headless Chromium, and whatever it complains about or asks of
the network fails the test."""

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
NEEDED = "needs Chromium"
NOT_THE_NETWORK = ("file:", "data:", "blob:", "about:")

Open = Callable[..., "Page"]
"""open_page(path, width=1280, height=900, colours="light" or "dark") -> Page"""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """One browser for the tests of a file: its event loop would disturb tests elsewhere that have their own."""
    path = chromium()
    if path is None:
        pytest.skip(NEEDED)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Open]:
    """Opens files; afterwards none of them may have had an error in its console or have asked for the network."""
    with watched(browser) as opened:
        yield opened


@contextmanager
def watched(browser: "Browser") -> Iterator[Open]:
    contexts, problems = [], []

    def note(path: Path, text: str) -> None:
        problems.append(f"{path.name}: {text}")

    def opened(
        path: Path, *, width: int = 1280, height: int = 900, colours: Literal["light", "dark"] = "light", **more: Any
    ) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: note(path, m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(path, str(error)))
        page.on("request", lambda r: None if r.url.startswith(NOT_THE_NETWORK) else note(path, f"asked for {r.url}"))
        page.goto(path.resolve().as_uri(), wait_until="load")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


def overflow(page: "Page") -> float:
    """By how many pixels the page is wider than its window: 0 on a page that does not scroll sideways."""
    return float(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
