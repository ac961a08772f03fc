"""Check a built site: every internal link must lead to an existing file and anchor."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and links of one HTML file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value and (tag, name) != ("link", "href"):
                self.links.add(value)


def broken_links(site: Path) -> list[str]:
    """Return the broken links within the site. External links are not checked."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            missing_anchor = anchor and target in pages and anchor not in pages[target].anchors
            if not target.exists() or missing_anchor:
                found.append(f"{path.relative_to(site.resolve())}: {link}")
    return sorted(found)


if __name__ == "__main__":
    problems = broken_links(Path(sys.argv[1]))
    sys.exit("\n".join(f"broken link in {problem}" for problem in problems) or None)
